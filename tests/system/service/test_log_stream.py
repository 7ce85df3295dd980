"""The stream of a service that logs JSON: every line is one object, each event is there once, and what handlers say
names the record and its trace.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.kafka import KafkaCluster
from tests.lengths import rest_long
from tests.system.members import MemberProcess, group_settings, merged

NOISY = """
import logging, sys, threading, warnings
print("module", "loaded")
print("module complains", file=sys.stderr)
log = logging.getLogger("shop")
log.warning("module logs")

def setup(options):
    print("set", "up")
    warnings.warn("old")
    threading.Thread(target=lambda: 1 / 0, name="brief").start()

def handle(record):
    print("part", "of", end=" ")
    print("record", record.offset)
    sys.stdout.buffer.write(b"bytes \\xff\\n")
    log.info("paid", extra={"order": record.offset, "level": "gold"})

handle.setup = setup
"""
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
RECORDS = 60


def lines_of(member: MemberProcess) -> list[dict[str, Any]]:
    """Its output; an `AssertionError` names a line that is no JSON object."""
    found = []
    for line in member.output().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            raise AssertionError(f"no JSON: {line!r}") from None
        assert isinstance(found[-1], dict), line
    return found


@pytest.fixture(scope="module")
def lines(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """All that a service says that starts, handles records in several threads, replaces its workers and stops."""
    directory, topic = tmp_path_factory.mktemp("noisy"), "noisy"
    (directory / "noisy.py").write_text(NOISY)
    kafka.create_topic(topic, 4)
    settings = merged(
        group_settings(kafka.bootstrap, [topic], topic, "noisy:handle", workers=2),
        {"handler": {"concurrency": 4, "options": {"a": 1}}, "tracing": {"enabled": True}},
        {"log": {"format": "json", "level": "info"}},
    )
    member = MemberProcess("noisy", directory, settings)
    try:
        member.wait_running(4)
        _send(kafka, topic)
        member.wait(lambda: member.output().count('"paid"') == RECORDS, "all records to be handled")
        os.kill(member.pid, signal.SIGHUP)
        member.wait(lambda: "all workers run revision 2" in member.output(), "the reload")
        assert member.stop() == 0
        return lines_of(member)
    finally:
        member.close()


def _send(kafka: KafkaCluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(RECORDS):
        headers: list[tuple[str, str | bytes | None]] = [("traceparent", f"00-{TRACE}-{SPAN}-01".encode())]
        producer.produce(topic, key=str(number).encode(), value=b"x", partition=number % 4, headers=headers)
    assert producer.flush(60) == 0


def said(lines: list[dict[str, Any]], event: str, logger: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == event and line["logger"] == logger]


def test_every_line_is_one_json_object_and_says_whose_it_is(lines: list[dict[str, Any]]) -> None:
    assert [line for line in lines if not {"time", "level", "process", "pid", "logger", "event"} <= line.keys()] == []
    assert {line["process"] for line in lines} == {"supervisor", "template", "worker-0", "worker-1"}


def test_no_event_is_told_twice(lines: list[dict[str, Any]]) -> None:
    told = Counter(json.dumps({**line, "time": ""}, sort_keys=True) for line in lines if line["logger"] != "stdout")
    assert [line for line, times in told.items() if times > 1] == []


def test_what_a_handler_prints_in_parts_is_one_line_with_the_records_place(lines: list[dict[str, Any]]) -> None:
    printed = [line for line in lines if line["event"].startswith("part of record")]
    assert len(printed) == RECORDS, "each, whole, and once"
    assert all(line["logger"] == "stdout" and line["level"] == "info" for line in printed)
    assert all(line["event"] == f"part of record {line['offset']}" for line in printed)
    assert {(line["topic"], line["partition"]) for line in printed} == {("noisy", p) for p in range(4)}
    assert len(said(lines, "bytes \\xff", "stdout")) == RECORDS


def test_what_is_printed_and_logged_before_the_first_record_is_there_too(lines: list[dict[str, Any]]) -> None:
    (one, other) = said(lines, "module loaded", "stdout")
    assert (one["process"], other["process"]) == ("template", "template"), "the first one's, and the reload's"
    assert [line["level"] for line in said(lines, "module complains", "stderr")] == ["warning"] * 2
    assert len(said(lines, "module logs", "shop")) == 2
    assert len(said(lines, "set up", "stdout")) == 4, "two workers, twice"
    assert [line for line in lines if "UserWarning: old" in line["event"]]


def test_a_thread_that_ends_by_an_exception_is_one_event_with_its_traceback(lines: list[dict[str, Any]]) -> None:
    broken = said(lines, "thread brief has ended by an exception", "kunicorn.prints")
    assert len(broken) == 4
    assert all("ZeroDivisionError" in line["exception"] and line["level"] == "error" for line in broken)


def test_a_handlers_line_has_its_extra_fields_the_record_and_the_trace(lines: list[dict[str, Any]]) -> None:
    paid = said(lines, "paid", "shop")
    assert len(paid) == RECORDS
    assert all(line["order"] == line["offset"] and line["level_"] == "gold" for line in paid)
    assert {line["trace_id"] for line in paid} == {TRACE}
    assert all(len(line["span_id"]) == 16 for line in paid)
    assert not any("trace_id" in line for line in lines if line["process"] == "supervisor")


FAILING = {
    "setup": "def handle(record): ...\ndef setup(options):\n    raise RuntimeError('x')\nhandle.setup = setup\n",
    "import": "import no_such_module\n",
    "death": "import os\ndef handle(record): ...\nos._exit(9)\n",
}


# That it is one error, whatever failed, `test_fatal_starts` holds; here the format is new.
@pytest.mark.parametrize("way", rest_long(FAILING, {"setup"}))
def test_a_start_that_fails_says_so_in_json_and_once(kafka: KafkaCluster, topic: str, tmp_path: Path, way: str) -> None:
    kafka.create_topic(topic, 1)
    (tmp_path / "failing.py").write_text(FAILING[way])
    usual = group_settings(kafka.bootstrap, [topic], topic, "failing:handle", workers=1)
    member = MemberProcess("failing", tmp_path, merged(usual, {"log": {"format": "json", "level": "info"}}))
    try:
        assert member.exit_code() == 3
        errors = [line for line in lines_of(member) if line["level"] == "error"]
        assert len(errors) == 1, errors
    finally:
        member.close()
