"""What transactions cost: a worker that copies records, in transactions against at least once, in one run.
`make bench-producing`

    python -m bench.producing [--bootstrap HOST:PORT] [--records N] [--rounds N]

The worker is the real one; only the supervisor is played. At 1,000 records a transaction, and at the default of 10,000;
with a handler that takes 100 µs, as one that parses JSON does, and with one that does nothing. The forms are measured
in turns: read the ratios, not the rates.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.quick import PARTITIONS, create, fill, handled, start_worker
from kunicorn.pipes.messages import CommitAs, CommitOver, CommitWanted, Configure, ProducingTarget
from kunicorn.pipes.producer import producer_properties
from tests.kafka import KafkaCluster
from tests.system.worker.rig import WorkerProcess, configuration

GOAL = 0.8
BUFFER_BYTES = 33_554_432
FORMS: Mapping[str, int | None] = {"at least once": None, "transactions of 1,000": 1000, "of 10,000": 10_000}
HANDLERS: Mapping[str, float] = {"copy_with_work": 0.1, "copy": 1.0}
"""Share of the records that each handles."""


def configured(bootstrap: str, topic: str, handler: str, most: int | None) -> Configure:
    """A worker that sends; `most` records in a transaction, None: at least once."""
    properties = producer_properties(
        bootstrap_servers=[bootstrap],
        client_id="bench",
        security={},
        consumers_extra={},
        extra={},
        transactional_id=None if most is None else "bench-producing",
        transaction_timeout_ms=10_000,
        delivery_timeout_ms=30_000,
        linger_ms=5,
        compression_type="none",
        acks="all",
        buffer_memory=BUFFER_BYTES,
    )
    delivery, records, wait_ms = ("at_least_once", 100_000, 5) if most is None else ("transactions", most, 100)
    target = ProducingTarget(delivery, f"{topic}-out", "rig", properties, records, BUFFER_BYTES, wait_ms)
    entrypoint = f"bench.quick_handlers:{handler}"
    return configuration(bootstrap, entrypoint, [topic], log_level="error", producing=target)


def rate(configure: Configure, topic: str, records: int) -> float:
    """Records a second, from the first that is consumed to the last."""
    with ExitStack() as stack:
        worker = start_worker(stack, configure)
        worker.start(topic, dict.fromkeys(range(PARTITIONS), 0))
        while not (already := handled(worker)):
            serve(worker)
        began = time.perf_counter()
        while (done := handled(worker)) < records:
            serve(worker)
        return (done - already) / (time.perf_counter() - began)


def serve(worker: WorkerProcess) -> None:
    """Answer as whom to commit: as nobody, which a group without members permits."""
    worker.listen(0.002)
    for message in worker.heard:
        if isinstance(message, CommitWanted):
            worker.tell(CommitAs(message.number, -1, "", None))
        else:
            assert isinstance(message, CommitOver), message
    worker.heard.clear()


def main() -> int:
    """Measure, print, and exit 1 if the goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.producing", description=__doc__)
    parser.add_argument("--bootstrap", help="a running broker (default: one of its own)")
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with ExitStack() as stack:
        bootstrap = options.bootstrap or stack.enter_context(KafkaCluster()).bootstrap
        topic = f"bench-{time.time_ns()}"
        fill(bootstrap, topic, options.records)
        create(bootstrap, f"{topic}-out")
        return measure(bootstrap, topic, options.records, options.rounds)


def measure(bootstrap: str, topic: str, records: int, rounds: int) -> int:
    """All rounds, then the table; the goal is that of transactions of 1,000 records with a handler that works."""
    console = Console(width=110)
    table = Table("handler", "form", "records/s", "ratio", "goal")
    good = True
    for handler, share in HANDLERS.items():
        rates: dict[str, list[float]] = {form: [] for form in FORMS}
        for _ in range(rounds):
            for form, most in FORMS.items():
                rates[form].append(rate(configured(bootstrap, topic, handler, most), topic, int(records * share)))
        for form, found in rates.items():
            ratio = median(ours / plain for ours, plain in zip(found, rates["at least once"], strict=True))
            judged = handler == "copy_with_work" and form == "transactions of 1,000"
            good &= not judged or ratio >= GOAL
            table.add_row(handler, form, f"{median(found):,.0f}", f"{ratio:.2f}", f"≥ {GOAL}" if judged else "")
    console.print(table)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
