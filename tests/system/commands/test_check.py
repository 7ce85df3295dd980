"""`kunicorn check` beside a real broker and real handlers, good and bad."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import socketserver
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer
from typer.testing import CliRunner

from kunicorn.clients.session import open_cluster
from kunicorn.commands.check.cluster import Finding, findings
from kunicorn.commands.check.session import check
from kunicorn.commands.cli import app
from kunicorn.errors import ExitCode
from kunicorn.kafka.cluster import Cluster
from kunicorn.observe import requests
from kunicorn.settings import KafkaSettings, Settings
from tests.kafka import KafkaCluster
from tests.system.members import toml
from tests.system.producing import committed_offsets
from tests.waiting import runs, wait_until

NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def orders(kafka: KafkaCluster) -> str:
    """A topic of three partitions."""
    return kafka.create_topic(f"check-orders-{uuid.uuid4().hex}", 3)


@pytest.fixture(scope="module")
def refunds(kafka: KafkaCluster) -> str:
    """A topic of one partition, which a pattern finds by all but the end of its name."""
    return kafka.create_topic(f"check-refunds-{uuid.uuid4().hex}-eu", 1)


def at(kafka: KafkaCluster, topic: str, **more: Any) -> dict[str, dict[str, Any]]:
    """Settings of a group of the topic's name; `more` of [kafka]."""
    return {
        "kafka": {"bootstrap_servers": kafka.bootstrap.split(","), **more},
        "group": {"id": topic, "topics": [topic]},
    }


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with a good handler in it."""
    (tmp_path / "shop.py").write_text("def handle(record): ...\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(**changes: dict[str, Any]) -> Settings:
    """With brokers that are nowhere, unless they are named."""
    values: dict[str, dict[str, Any]] = {
        "kafka": {"bootstrap_servers": [NOWHERE]},
        "group": {"id": "shop", "topics": ["orders"]},
        "handler": {"entrypoint": "shop:handle"},
        # Whatever else runs on this machine has the usual one.
        "http": {"port": 0},
    }
    for section, more in changes.items():
        values.setdefault(section, {}).update(more)
    return Settings.model_validate(values)


def checked(**changes: dict[str, Any]) -> tuple[ExitCode, dict[str, str]]:
    """The exit code, and the lines by what they are about."""
    lines: list[str] = []
    code = check(settings(**changes), lambda finding: lines.append(str(finding)))
    return code, {line.split()[1]: line for line in lines}


def asked(**changes: dict[str, Any]) -> dict[str, Finding]:
    """What the cluster alone is asked, without the processes in which handlers are looked at."""

    async def found() -> dict[str, Finding]:
        return {finding.what: finding async for finding in findings(settings(**changes))}

    return asyncio.run(found())


def failed(found: dict[str, Finding]) -> dict[str, ExitCode]:
    """What has failed, with the exit code."""
    return {what: finding.failure for what, finding in found.items() if finding.failure is not None}


def test_all_is_well(kafka: KafkaCluster, orders: str, handlers: Path) -> None:
    code, lines = checked(**at(kafka, orders))
    assert code is ExitCode.CLEAN
    # Who runs the tests as root is told that they do.
    assert (lines.pop("user", None) is not None) == (os.geteuid() == 0)
    lines.pop("memory", None)  # So is whoever runs them where as many workers as CPUs do not fit.
    assert [line.split()[:2] for line in lines.values()] == [
        ["ok", what]
        for what in ("handler", "client", "allocator", "setup", "brokers", "topics", "rights", "group", "members")
    ]
    assert f"{orders} (3 partitions)" in lines["topics"]
    assert "coordinator on node" in lines["group"]
    groups = kafka.admin().list_consumer_groups().result(60).valid
    assert orders not in {group.group_id for group in groups}, "it asks, and never joins"


def test_what_is_found_can_be_had_for_a_program(kafka: KafkaCluster, orders: str, handlers: Path) -> None:
    own: dict[str, dict[str, Any]] = {"handler": {"entrypoint": "shop:handle"}, "http": {"port": 0}}
    (handlers / "config.toml").write_text(toml({**at(kafka, orders), **own}))
    result = CliRunner().invoke(app, ["check", "--json"])
    assert result.exit_code == 0, result.output
    found = {each["what"]: each for each in json.loads(result.stdout)}
    assert found["settings"]["result"] == "ok"
    assert found["members"]["text"].startswith("none now; this member would get 3 of 3 partitions")


def test_a_topic_that_does_not_exist_is_told_and_not_created(kafka: KafkaCluster, topic: str) -> None:
    for _ in range(2):
        found = asked(**at(kafka, topic))
        assert failed(found) == {"topics": ExitCode.CONFIGURATION}
        assert found["topics"].text.startswith(f"{topic}: UNKNOWN_TOPIC_OR_PARTITION (3); create the topic")


def test_partitions_that_are_assigned_by_name_are_looked_for_and_no_group_is(kafka: KafkaCluster, orders: str) -> None:
    no_group = {**at(kafka, orders), "group": {"topics": []}}
    found = asked(**no_group, assign={"partitions": [f"{orders}:0-2"]})
    assert failed(found) == {}
    assert "group" not in found
    found = asked(**no_group, assign={"partitions": [f"{orders}:1-3"]})
    assert failed(found) == {"assign": ExitCode.CONFIGURATION}
    assert f"assign.partitions: {orders}:3 do not exist" in found["assign"].text


def test_a_pattern_tells_the_topics_it_matches(kafka: KafkaCluster, refunds: str) -> None:
    pattern = f"^{refunds.removesuffix('eu')}.*"
    found = asked(kafka=at(kafka, refunds)["kafka"], group={"topics": [pattern]})
    assert failed(found) == {}
    assert found["topics"].text == f"{pattern} matches {refunds} (1 partition)"


def test_a_pattern_without_a_match_is_no_failure(kafka: KafkaCluster, topic: str) -> None:
    found = asked(kafka=at(kafka, topic)["kafka"], group={"topics": [f"^{topic}"]})
    assert failed(found) == {}
    assert "matches no topic yet" in found["topics"].text


def test_brokers_that_do_not_answer_are_named() -> None:
    found = asked()
    assert failed(found) == {"brokers": ExitCode.CONFIGURATION}
    assert found["brokers"].text.startswith("no broker answered: cannot connect to 127.0.0.1:1")
    assert found["brokers"].text.endswith("correct kafka.bootstrap_servers, or start them")
    assert "topics" not in found


def test_a_group_of_the_other_protocol_is_not_joined_unasked(kafka: KafkaCluster, orders: str, topic: str) -> None:
    classic = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": topic})
    try:
        classic.subscribe([orders])
        wait_until(lambda: classic.poll(0.1) is None and classic.assignment(), "its partitions")
        group = {"id": topic, "topics": [orders], "group_protocol": "consumer"}
        found = asked(kafka=at(kafka, orders)["kafka"], group=group)
    finally:
        classic.close()
    assert failed(found) == {"members": ExitCode.CONFIGURATION}
    assert f"group '{topic}' is a classic group (Stable, 1 members)" in found["members"].text


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_share_groups_name_is_not_taken_for_that_of_a_new_group(
    kafka: KafkaCluster, orders: str, topic: str, protocol: str
) -> None:
    sharing = ShareConsumer({"bootstrap.servers": kafka.bootstrap, "group.id": topic, "log_level": 0})
    group = {"id": topic, "topics": [orders], "group_protocol": protocol}
    taken = f"group '{topic}' is taken: it is a share group"

    def told() -> dict[str, Finding]:
        sharing.poll(0.1)
        return asked(kafka=at(kafka, orders)["kafka"], group=group)

    try:
        sharing.subscribe([orders])
        wait_until(lambda: told()["members"].text.startswith(f"{taken} (Stable)"), "a share group", within=60)
        assert failed(told()) == {"members": ExitCode.CONFIGURATION}
    finally:
        sharing.close()
    emptied = asked(kafka=at(kafka, orders)["kafka"], group=group)["members"].text
    assert emptied.startswith(f"{taken} (Empty)"), "and stays one"


class NoBroker(socketserver.BaseRequestHandler):
    """Accepts every connection, and says what no broker says."""

    says = b""

    def handle(self) -> None:
        self.request.sendall(self.says)
        while self.request.recv(1000):
            pass


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (b"", "did not answer as a broker does within"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP server answers there"),
    ],
    ids=["nothing", "http"],
)
def test_who_answers_in_a_brokers_place_is_not_said_to_be_out_of_reach(
    monkeypatch: pytest.MonkeyPatch, says: bytes, told: str
) -> None:
    if not says:
        monkeypatch.setattr("kunicorn.clients.session.CONNECT_TIMEOUT", 1.0)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), type("", (NoBroker,), {"says": says})) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = asked(kafka={"bootstrap_servers": [f"127.0.0.1:{server.server_address[1]}"]})
        server.shutdown()
    assert failed(found) == {"brokers": ExitCode.CONFIGURATION}
    assert told in found["brokers"].text
    assert "accept" not in found["brokers"].text, "it did"


def test_a_property_that_librdkafka_refuses_is_named(handlers: Path) -> None:
    code, lines = checked(kafka={"librdkafka": {"fetch.wait.maxx.ms": 1}})
    assert code is ExitCode.CONFIGURATION
    assert lines["client"].startswith('FAILED  client    No such configuration property: "fetch.wait.maxx.ms"')


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import sys; sys.exit(0)", "SystemExit"),
        ("import os; os._exit(9)", "ended the process: exit 9"),
        ("import os; os.kill(os.getpid(), 11)", "ended the process: SIGSEGV"),
    ],
)
def test_a_handler_that_cannot_be_loaded_is_told_with_exit_code_3(handlers: Path, source: str, words: str) -> None:
    """Also one that ends its process, with which it would have ended the check."""
    (handlers / "shop.py").write_text(source)
    code, lines = checked()
    assert code is ExitCode.HANDLER
    assert lines["handler"].startswith("FAILED  handler")
    assert words in lines["handler"]


@pytest.mark.parametrize(("ending", "result"), [("", "ok"), ("raise ValueError('too bad')", "FAILED")])
def test_threads_and_children_of_a_handlers_module_neither_hold_up_the_check_nor_outlive_it(
    handlers: Path, ending: str, result: str
) -> None:
    (handlers / "shop.py").write_text(
        "import os, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "child = os.fork()\n"
        "if child == 0: time.sleep(600)\n"
        "open('pid', 'w').write(str(child))\n"
        f"def handle(record): ...\n{ending}\n"
    )
    _, lines = checked()
    assert lines["handler"].startswith(result)
    assert ("too bad" in lines["handler"]) == (result == "FAILED")
    child = int((handlers / "pid").read_text())
    wait_until(lambda: not runs(child), "the module's child to be gone")


def test_what_a_handlers_module_prints_is_not_mixed_into_the_answer(
    handlers: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (handlers / "shop.py").write_text("print('noise')\ndef handle(record): ...\n")
    checked()
    assert "noise" not in capfd.readouterr().out


# -- the handler tried on records --------------------------------------------------------------------------------------


def tried(
    kafka: KafkaCluster,
    topic: str,
    records: int,
    partitions: Sequence[str] = (),
    isolation_level: str = "read_uncommitted",
    **handler: Any,
) -> tuple[ExitCode, str]:
    """The exit code and the last line of `kunicorn check --try`; with `partitions`, of a service that assigns them."""
    lines: list[str] = []
    source = {"assign": {"partitions": list(partitions)}} if partitions else {"group": {"id": topic, "topics": [topic]}}
    settings = {
        "kafka": {"bootstrap_servers": kafka.bootstrap.split(","), "isolation_level": isolation_level},
        **source,
        "handler": {"entrypoint": "shop:handle", **handler},
        "http": {"port": 0},
    }
    code = check(Settings.model_validate(settings), lambda finding: lines.append(str(finding)), records=records)
    return code, lines[-1]


@pytest.fixture(scope="module")
def numbers(kafka: KafkaCluster) -> str:
    """A topic of two partitions with the numbers from 0 to 19 in each."""
    topic = kafka.create_topic(f"check-numbers-{uuid.uuid4().hex}", 2)
    sender = Producer({"bootstrap.servers": kafka.bootstrap})
    for partition in (0, 1):
        for number in range(20):
            sender.produce(topic, str(number), "key", partition=partition, timestamp=1_700_000_000_000 + number)
    assert sender.flush(60) == 0
    return topic


def test_what_the_handler_prints_is_shown_beside_the_answer(
    kafka: KafkaCluster, handlers: Path, numbers: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (handlers / "shop.py").write_text(
        "import sys\n"
        "def handle(record):\n"
        "    print('order', record.offset)\n"
        "    print('no newline', end='', file=sys.stderr)\n"
        "    sys.stdout.write('\\x1b[31m' * 20_000)\n"
    )
    code, line = tried(kafka, numbers, 2)
    assert code is ExitCode.CLEAN, line
    out, err = capfd.readouterr()
    assert "handler | order 19" in err
    assert "\x1b" not in err
    assert "order" not in out


@pytest.mark.parametrize("mode", ["record", "batch", "arrow"])
def test_the_handler_gets_the_latest_records_with_its_options_and_commits_nothing(
    kafka: KafkaCluster, handlers: Path, numbers: str, mode: str
) -> None:
    (handlers / "shop.py").write_text(
        "seen = open('seen', 'a', buffering=1)\n"
        "def setup(options): seen.write(options['greeting'] + '\\n')\n"
        "def handle(got):\n"
        "    if hasattr(got, 'to_pylist'):\n"
        "        records = [(row['partition'], row['value']) for row in got.to_pylist()]\n"
        "    else:\n"
        "        records = [(one.partition, one.value) for one in ([got] if hasattr(got, 'offset') else got)]\n"
        "    for partition, value in records:\n"
        "        seen.write(f'{partition}:{value.decode()}\\n')\n"
        "handle.setup = setup\n"
    )
    code, line = tried(kafka, numbers, 4, mode=mode, options={"greeting": "hello"})
    assert code is ExitCode.CLEAN, line
    assert line.startswith("ok      trial     4 records handled")
    assert (handlers / "seen").read_text().split() == ["hello", "0:18", "0:19", "1:18", "1:19"]
    assert set(committed_offsets(kafka.bootstrap, numbers, numbers, 2).values()) == {-1001}


def test_a_service_that_assigns_partitions_by_name_is_tried_with_records_of_no_others(
    kafka: KafkaCluster, handlers: Path, numbers: str
) -> None:
    (handlers / "shop.py").write_text(
        "seen = open('seen', 'a', buffering=1)\n"
        "def handle(record): seen.write(f'{record.partition}:{record.value.decode()}\\n')\n"
    )
    code, line = tried(kafka, numbers, 2, partitions=[f"{numbers}:1"])
    assert code is ExitCode.CLEAN, line
    assert (handlers / "seen").read_text().split() == ["1:18", "1:19"]


def test_records_that_fail_are_counted_and_the_first_is_told_with_its_place(
    kafka: KafkaCluster, handlers: Path, numbers: str
) -> None:
    (handlers / "shop.py").write_text(
        "from kunicorn import Skip\n"
        "async def handle(record):\n"
        "    if record.value == b'18': raise ValueError('too bad')\n"
        "    return Skip('odd')\n"
    )
    code, line = tried(kafka, numbers, 4)
    assert code is ExitCode.HANDLER
    assert line.startswith("FAILED  trial     2 of 4 records failed"), line
    assert f"2 said Skip: {numbers}-0@18: ValueError: too bad" in line
    assert 'shop.py", line 3, in handle' in line


def test_a_handler_that_ends_the_trial_is_told(kafka: KafkaCluster, handlers: Path, numbers: str) -> None:
    (handlers / "shop.py").write_text("import os\ndef handle(record): os.kill(os.getpid(), 11)\n")
    code, line = tried(kafka, numbers, 1)
    assert code is ExitCode.HANDLER
    assert line.endswith("trying the handler on 1 records ended early: SIGSEGV")


def test_records_that_were_sent_in_transactions_are_tried_beside_one_that_is_open(
    kafka: KafkaCluster, handlers: Path, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    sender = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    sender.init_transactions(30)
    for number in range(3):
        sender.begin_transaction()
        sender.produce(topic, str(number))
        sender.commit_transaction(30)
    sender.begin_transaction()
    sender.produce(topic, "open")
    assert sender.flush(60) == 0
    try:
        code, line = tried(kafka, topic, 2, isolation_level="read_committed")
    finally:
        sender.abort_transaction(30)
    assert code is ExitCode.CLEAN, line
    assert line.startswith("ok      trial     2 records handled"), line


def test_topics_without_records_are_no_failure(kafka: KafkaCluster, orders: str, handlers: Path) -> None:
    assert tried(kafka, orders, 5) == (
        ExitCode.CLEAN,
        "warning trial     the topics hold no records to try the handler on",
    )


def test_a_port_that_another_process_has_is_told(kafka: KafkaCluster, orders: str, handlers: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, lines = checked(**at(kafka, orders), http={"host": "127.0.0.1", "port": port})
    assert code is ExitCode.CONFIGURATION
    assert f"http.port = {port} on 127.0.0.1: another process listens there" in lines["port"]


def test_the_port_of_the_service_that_runs_here_is_no_failure(kafka: KafkaCluster, orders: str, handlers: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with requests.listen(port) as local:
            local.listen()
            code, lines = checked(**at(kafka, orders), http={"host": "127.0.0.1", "port": port})
            requests.forget(local.getsockname())
    assert code is ExitCode.CLEAN
    assert lines["port"].startswith("warning")


def test_at_a_pods_start_an_outage_is_waited_for(
    kafka: KafkaCluster, orders: str, handlers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, said = [NOWHERE], list[str]()

    def opened(settings: KafkaSettings) -> Cluster:
        return open_cluster(settings.model_copy(update={"bootstrap_servers": tuple(servers)}))

    def say(finding: Finding) -> None:
        said.append(str(finding))
        if "waiting for this to pass" in finding.text:
            servers[:] = kafka.bootstrap.split(",")

    monkeypatch.setattr("kunicorn.commands.check.cluster.open_cluster", opened)
    assert check(settings(group={"topics": [orders]}), say, waits=True) is ExitCode.CLEAN
    (waited,) = (line for line in said if "waiting for this to pass" in line)
    assert NOWHERE in waited


def test_at_a_pods_start_what_will_not_pass_ends_at_once(kafka: KafkaCluster, handlers: Path, topic: str) -> None:
    assert check(settings(**at(kafka, topic)), lambda _: None, waits=True) is ExitCode.CONFIGURATION


def test_transactions_that_brokers_do_not_begin_are_told_with_what_to_do(
    kafka: KafkaCluster, orders: str, refunds: str, handlers: Path
) -> None:
    isolated = at(kafka, orders, isolation_level="read_committed")
    producing: dict[str, Any] = {"delivery": "transactions", "topic": refunds, "transactional_id_prefix": orders}
    worker = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{orders}-0-0-a"})
    worker.init_transactions(60)
    code, lines = checked(**isolated, producing=producing)
    assert code is ExitCode.CLEAN
    assert f"brokers begin transactions for '{orders}-check'" in lines["outputs"]
    worker.begin_transaction()
    worker.produce(refunds, "no worker was fenced")
    worker.commit_transaction(60)
    code, lines = checked(**isolated, producing={**producing, "transaction_timeout_ms": 3_600_000})
    assert code is ExitCode.CONFIGURATION
    assert "lower producing.transaction_timeout_ms" in lines["outputs"]
