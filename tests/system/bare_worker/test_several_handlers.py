"""Several handlers in one worker: each gets its own topics' records, in its own mode and by its own rules."""

from __future__ import annotations

from kunicorn.ipc.messages import Failed, FetcherStart, StartFetcher
from kunicorn.positions import NO_EPOCH
from tests.kafka import KafkaCluster
from tests.system.bare_worker.rig import OVER_BOTH_FETCHERS, Rig, handler_of
from tests.system.bare_worker.traffic import HANDLERS, produce, seen

pytestmark = OVER_BOTH_FETCHERS


def test_each_topic_has_its_handler_its_mode_and_its_rules(processes: Rig, kafka: KafkaCluster, topic: str) -> None:
    orders, refunds, broken = f"orders-{topic}", f"refunds-{topic}", f"broken-{topic}"
    for name in (orders, refunds, broken):
        kafka.create_topic(name, 1)
        produce(kafka.bootstrap, name, [f"{name[:6]}-{n}" for n in range(3)], 0)
    handlers = [
        handler_of("see", orders),
        handler_of("see_batch", "^refunds-.*", mode="batch"),
        handler_of("see_async", "^nobody-.*"),
        handler_of("always_fails", "^broken-.*"),
    ]
    processes.module(HANDLERS + "\n\ndef always_fails(record):\n    raise ValueError('its own rule: one try')\n")
    worker = processes.worker("see", kafka.bootstrap, [orders, refunds, broken], handlers=handlers)
    worker.tell(
        StartFetcher(
            [FetcherStart(n, n, name, 0, 0, NO_EPOCH) for n, name in enumerate((orders, refunds, broken), start=1)]
        )
    )
    worker.consumed(1, 3)
    worker.consumed(2, 3)
    failed = worker.expect(Failed)
    assert (failed.grant, failed.offset) == (3, 0)
    lines = seen(processes.directory)
    assert [line for line in lines if "orders" in line] == [f"0@{n}=orders-{n}" for n in range(3)]
    batches = [line for line in lines if "+" in line]
    assert sum(int(line.partition("+")[2]) for line in batches) == 3
