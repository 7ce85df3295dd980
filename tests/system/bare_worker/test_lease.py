"""No record is started past the lease, and nothing is lost by waiting for it."""

from __future__ import annotations

from kunicorn.ipc import clock
from kunicorn.ipc.messages import Drain, FetcherStopped
from tests.kafka import KafkaCluster
from tests.system.bare_worker.rig import FOREVER_NS, Rig
from tests.system.bare_worker.traffic import HANDLERS, produce, seen
from tests.waiting import wait_until


def test_a_worker_whose_lease_runs_out_between_fast_records_starts_nothing_more(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    produce(kafka.bootstrap, topic, (str(i) for i in range(100_000)))
    worker = processes.worker("see", kafka.bootstrap, [topic])
    worker.start(topic, {0: 0})
    worker.consumed(1, 1000)
    worker.ledger.lease_ns = clock.now_ns()
    wait_until(lambda: worker.ping().paused_by_lease, "the pause")
    stopped_at = worker.slot(1).consumed.offset
    for _ in range(20):
        worker.ping()
    assert worker.slot(1).consumed.offset == stopped_at < 100_000
    worker.ledger.lease_ns = FOREVER_NS
    worker.consumed(1, 100_000)
    assert seen(processes.directory) == [f"0@{i}={i}" for i in range(100_000)]
    assert not worker.ping().paused_by_lease


def test_a_handler_that_turns_slow_inside_a_chunk_starts_no_record_past_the_lease(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    produce(kafka.bootstrap, topic, [*(str(i) for i in range(5000)), "wait", *(str(i) for i in range(2000))])
    worker = processes.worker("wait_when_told", kafka.bootstrap, [topic])
    worker.start(topic, {0: 0})
    wait_until(lambda: worker.slot(1).in_hand == 5000, "the slow record")
    assert worker.slot(1).hand_count > 1, "the slow record is in the middle of a chunk"
    worker.ledger.lease_ns = clock.now_ns()
    # The control thread looks at the lease before it waits for a message: before the second answer it has.
    worker.ping()
    worker.ping()
    (processes.directory / "go").touch()
    wait_until(lambda: worker.ping().paused_by_lease, "the pause")
    assert worker.slot(1).consumed.offset == 5001


HEARS = """
class Hears:
    def handle(self, record):
        (HERE / "handled").touch()

    def on_lost(self, partitions):
        (HERE / "lost").write_text(",".join(str(offset) for offset in partitions.values()))
"""


def test_a_worker_past_its_lease_tells_its_handler_what_is_lost_and_then_the_supervisor_and_drains(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    produce(kafka.bootstrap, topic, (str(i) for i in range(1000)))
    processes.module(HANDLERS + HEARS)
    worker = processes.worker("Hears", kafka.bootstrap, [topic])
    worker.ledger.lease_ns = 1
    worker.start(topic, {0: 0})
    wait_until(lambda: worker.ping().paused_by_lease, "the pause")
    worker.stop(1, lost=True)
    assert worker.expect(FetcherStopped).partitions[0].offset == 0, "the lease comes back only after this"
    assert (processes.directory / "lost").read_text() == "0"
    assert not (processes.directory / "handled").exists()
    worker.tell(Drain(0.0))
    assert worker.exit_status() == 0


WAITS = """
from kunicorn import Wait

def waits(record):
    see(record)
    if record.value == b"500" and not (HERE / "go").exists():
        raise Wait(0.02, "busy")
"""


def test_a_record_that_waits_does_not_come_again_past_the_lease(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    produce(kafka.bootstrap, topic, (str(i) for i in range(1000)))
    processes.module(HANDLERS + WAITS)
    worker = processes.worker("waits", kafka.bootstrap, [topic])
    worker.start(topic, {0: 0})
    wait_until(lambda: seen(processes.directory).count("0@500=500") > 3, "it to come again and again")
    worker.ledger.lease_ns = clock.now_ns()
    wait_until(lambda: worker.ping().paused_by_lease, "the pause")
    times = len(seen(processes.directory))
    (processes.directory / "go").touch()
    # Longer than it waits: it is due, and does not begin.
    due = clock.now() + 0.2
    wait_until(lambda: worker.ping().paused_by_lease and clock.now() > due, "its time to come")
    assert len(seen(processes.directory)) == times
    assert worker.slot(1).consumed.offset == 500
    worker.ledger.lease_ns = FOREVER_NS
    worker.consumed(1, 1000)
    handled = [line for line in seen(processes.directory) if line != "0@500=500"]
    assert handled == [f"0@{i}={i}" for i in range(1000) if i != 500]
    assert len(seen(processes.directory)) == times + 500
