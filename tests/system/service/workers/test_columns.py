"""Our own fetcher in real workers: with kills and a rebalance every record is handled in order and committed, by
handlers of columns, of batches and of records alike.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kafka import KafkaCluster
from tests.system.group.journal import handled_up_to, judgement
from tests.system.members import IMPORTABLE, MemberProcess, Members
from tests.system.producing import produce

PARTITIONS = 8
RECORDS = {"arrow": 10_000, "across": 10_000, "batch": 10_000, "record": 2_000, "tasks": 2_000}
"""By mode. A call takes ten milliseconds in the mean, whether it is of a hundred records or of one."""
ENV = {"KUNICORN_HANDLER_MS": "20"}
OWN = {"kafka": {"fetcher": "own"}}
MODES: Mapping[str, Mapping[str, Any]] = {
    "arrow": {"entrypoint": "kunicorn.commands.demo.columnar:handle", "mode": "arrow", "batch_max_records": 100},
    "across": {
        "entrypoint": "kunicorn.commands.demo.columnar:handle",
        "mode": "arrow",
        "batch_max_records": 100,
        "batch_max_ms": 50,
        "batch_across_partitions": True,
    },
    "batch": {"entrypoint": "kunicorn.commands.demo.audit:handle_batch", "mode": "batch", "batch_max_records": 100},
    "record": {"entrypoint": "tests.system.handlers.audited:handle"},
    "tasks": {"entrypoint": "tests.system.handlers.audited:handle_async", "concurrency": 4},
}


def handled(*members: MemberProcess) -> int:
    return sum(map(handled_up_to, members))


@pytest.mark.parametrize(
    ("mode", "fetcher"),
    [
        ("arrow", "own"),
        ("across", "own"),
        # In CI the testing kit has columns of librdkafka's records, and bare workers batches and records of our own's.
        pytest.param("across", "librdkafka", marks=pytest.mark.long),
        pytest.param("batch", "own", marks=pytest.mark.long),
        pytest.param("record", "own", marks=pytest.mark.long),
        pytest.param("tasks", "own", marks=pytest.mark.long),
    ],
)
@pytest.mark.scenario("testFetchDuringCooperativeRebalance")
def test_killed_workers_and_a_rebalance_lose_and_double_nothing(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], mode: str, fetcher: str
) -> None:
    """Invariants 1, 4, 6 and 8."""
    records = RECORDS[mode]
    kafka.create_topic(topic, PARTITIONS)
    produce(kafka.bootstrap, topic, records)
    members = members_of(
        kafka.bootstrap, topic, settings={"kafka": {"fetcher": fetcher}, "handler": MODES[mode]}, env=ENV
    )
    first = members.start()
    first.wait(lambda: handled(first) > records * 0.1, "a part of the backlog")
    killed = [first.workers()[0]["pid"]]
    os.kill(killed[0], signal.SIGKILL)
    first.wait(lambda: handled(first) > records * 0.3, "more of it, after a kill")
    second = members.start()
    second.wait(lambda: second.partitions("running"), "partitions of the second member")
    killed.append(second.workers()[0]["pid"])
    os.kill(killed[1], signal.SIGKILL)
    first.wait(lambda: handled(first, second) == records, "the rest", 120)
    assert [first.stop(), second.stop()] == [0, 0]
    in_hand = int(MODES[mode].get("concurrency", 1))
    report = judgement(kafka, members, topic, PARTITIONS, killed=killed, in_hand=in_hand)
    assert report.handled == records
    assert all(report.handled_by.values())


def test_without_the_decoder_the_service_says_what_to_install(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], tmp_path: Path
) -> None:
    kafka.create_topic(topic, 1)
    (tmp_path / "kunicorn_columns.py").write_text("raise ModuleNotFoundError('no', name='kunicorn_columns')\n")
    hidden = {"PYTHONPATH": os.pathsep.join([IMPORTABLE, str(tmp_path)])}
    member = members_of(kafka.bootstrap, topic, settings={**OWN, "handler": MODES["arrow"]}, env=hidden).start()
    assert member.exit_code() == 2
    assert "kunicorn_columns-*.whl" in member.output()
