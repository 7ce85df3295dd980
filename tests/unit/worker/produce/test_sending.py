"""How many producers a worker has, and under which transactional ids."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kunicorn.errors import FENCED_STATUS, ExitCode
from kunicorn.handler.config import DeadLetterTarget, ProducingTarget
from kunicorn.handler.dead_letters import Cause, dead_letters
from kunicorn.handler.outputs import Outgoing
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import Configure, EndTransactions
from kunicorn.testing.memory import MemoryConsumer, MemoryLog, MemoryProducer, SentRecord
from kunicorn.worker import assembly
from kunicorn.worker.assembly import Assembled, Makers, assemble
from kunicorn.worker.control import apply
from kunicorn.worker.produce.outbox import Entry, GivenUp, Outbox, OutputBatch
from kunicorn.worker.produce.sender import Sender
from tests.fakes.origins import FakeOrigin
from tests.fakes.thread_limit import ThreadLimit
from tests.unit.worker.produce.output_batches import entry
from tests.unit.worker.whole import order
from tests.waiting import wait_until

CLIENT: dict[str, str | int | float | bool] = {"transactional.id": "orders-0-0", "transaction.timeout.ms": 10_000}


class NoThreads:
    """Who would take batches."""

    def __init__(self, outbox: Outbox, senders: Sequence[Sender]) -> None:
        self.senders = senders

    def start(self) -> None:
        """The test takes none."""


def producers(
    target: ProducingTarget | None,
    *told: EndTransactions,
    batches: Sequence[OutputBatch] = (),
    sent: dict[str, list[SentRecord]] | None = None,
    tell: Callable[[Assembled, EndTransactions], None] = apply,
) -> tuple[list[dict[str, Any]], list[int]]:
    """The properties of each that a worker makes, and the numbers of senders that it starts. `told`: what the
    supervisor says then; `batches`: what is delivered, which `sent` has by the `acks` of its producer."""
    made, threads = list[dict[str, Any]](), list[NoThreads]()

    def make(properties: dict[str, Any], logger: Any) -> Any:
        made.append(properties)
        return MemoryProducer([] if sent is None else sent.setdefault(str(properties.get("acks")), []))

    def senders(outbox: Outbox, senders: Sequence[Sender]) -> NoThreads:
        threads.append(NoThreads(outbox, senders))
        return threads[-1]

    def consumer(properties: Any, logger: Any) -> Any:
        return MemoryConsumer(MemoryLog([]), time.sleep)

    ledger = Ledger.create(4)
    configure = Configure(
        worker=0,
        group="g",
        handlers=[order("wait", "partition", 1)],
        client={},
        topics=[],
        log_level="info",
        log_format="text",
        producing=target,
        dead_letters=DeadLetterTarget("letters", "g", {"acks": "all"}),
    )
    assembled = assemble(configure, ledger, lambda message: None, Makers(consumer, producer=make, senders=senders))
    for message in told:
        tell(assembled, message)
    for batch in batches:
        given_up = any(each.given_up is not None for each in batch.entries)
        threads[-1 if given_up else 0].senders[0].deliver(batch)
    for handling in assembled.handlings.every:
        handling.tear_down()
    ledger.close()
    return made, [len(each.senders) for each in threads]


@pytest.mark.parametrize(
    ("delivery", "ids"),
    [("transactions", ["orders-0-0-a", "orders-0-0-b", "orders-0-0-c"]), ("at_least_once", ["orders-0-0"])],
)
def test_in_transactions_three_producers_take_turns_under_ids_of_their_own(delivery: str, ids: list[str]) -> None:
    made, senders = producers(ProducingTarget(delivery, None, "orders", CLIENT, 10, 1000, 100))
    assert [properties["transactional.id"] for properties in made] == ids
    assert senders == ([3] if delivery == "transactions" else [1, 1]), (
        "at least once, letters have a sender of their own"
    )


def test_what_is_inherited_is_ended_under_ids_that_nobody_has_and_nothing_is_sent_under_them() -> None:
    made, senders = producers(ProducingTarget("transactions", None, "o", CLIENT, 10, 1000, 100, inherited="orders-0-1"))
    ids = [str(properties["transactional.id"]) for properties in made]
    assert sorted(ids) == [f"orders-0-{turn}-{each}" for turn in (0, 1) for each in "abc"]
    assert senders == [3]


def test_what_a_dead_worker_has_left_open_is_ended_under_its_ids_when_the_supervisor_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[object] = []
    monkeypatch.setattr(assembly, "take_over", taken.append)
    target = ProducingTarget("transactions", None, "o", CLIENT, 10, 1000, 100)
    made, senders = producers(target, EndTransactions("orders-0-1"))
    wait_until(lambda: len(taken) == 6, "each id is taken")
    assert [properties["transactional.id"] for properties in made[3:]] == [f"orders-0-1-{each}" for each in "abc"]
    assert senders == [3], "nothing is sent under them"


def test_where_no_thread_can_be_started_for_that_the_brokers_end_it_later_and_the_worker_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def apply_without_threads(worker: Assembled, said: EndTransactions) -> None:
        with monkeypatch.context() as limited:
            ThreadLimit(limited, 0)
            apply(worker, said)

    target = ProducingTarget("transactions", None, "o", CLIENT, 10, 1000, 100)
    made, _ = producers(target, EndTransactions("orders-0-1"), tell=apply_without_threads)
    assert len(made) == 3, "those of its own"
    (told,) = [each for each in caplog.messages if "left open" in each]
    assert told.startswith("what a dead worker has left open under orders-0-1 is not ended, its partitions wait ")
    assert ": can't start new thread: raise the limit of processes" in told


def test_a_worker_without_transactions_has_no_producer_for_that() -> None:
    target = ProducingTarget("at_least_once", None, "orders", CLIENT, 10, 1000, 100)
    made, _ = producers(target, EndTransactions("orders-0-1"))
    assert len(made) == 1


def test_where_only_letters_are_sent_their_producer_is_made_with_the_first_one() -> None:
    assert producers(None) == ([], [1])


def test_letters_go_by_a_producer_of_their_own_which_is_made_with_the_first_one() -> None:
    origin, sent = FakeOrigin(), dict[str, list[SentRecord]]()
    given_up = GivenUp(dead_letters("letters"), Cause("ValueError", "no", "", 1))
    letter = Entry(origin, 1, 2, [Outgoing("letters", b"1", None, None, -1, 0)], given_up)
    target = ProducingTarget("at_least_once", None, "orders", {"acks": "1"}, 10, 1000, 100)
    made, _ = producers(target, batches=[OutputBatch([entry(origin, 0)])], sent=sent)
    assert [properties["acks"] for properties in made] == ["1"]
    of_letters = OutputBatch([letter, Entry(origin, 2, 3, letter.outputs, given_up)])
    made, _ = producers(target, batches=[OutputBatch([entry(origin, 2)]), of_letters], sent=sent)
    assert [properties["acks"] for properties in made] == ["1", "all"]
    assert made[1]["delivery.report.only.error"] is False, "each that has arrived is reported"
    topics = {acks: [each.topic for each in records] for acks, records in sent.items()}
    assert topics == {"1": ["out", "out"], "all": ["letters", "letters"]}


_ENDING = """
import sys, time
from kunicorn.worker.produce import sender

class Breaking:
    often = False

    def deliver(self, batch):
        raise getattr(sender, sys.argv[1])("no more") if hasattr(sender, sys.argv[1]) else ValueError("no more")

class Outbox:
    def take(self, turn):
        return ["a batch"]

sender.SenderThreads(Outbox(), [Breaking()]).start()
time.sleep(60)
"""


@pytest.mark.parametrize(("error", "status"), [("Fenced", FENCED_STATUS), ("ValueError", ExitCode.BUG)])
def test_a_worker_whose_producer_is_fenced_ends_by_a_status_of_its_own(error: str, status: int) -> None:
    ended = subprocess.run([sys.executable, "-c", _ENDING, error], check=False, capture_output=True, timeout=120)
    assert ended.returncode == status
    assert b"no more" in ended.stderr


_HANGING = """
from kunicorn.worker.assembly import Sending

sending = Sending(None, [], None, None, lambda now: f"hangs, and it is {now:g}" if now > 1 else None)
sending.look(1.0)
sending.look(2.0)
"""


def test_a_worker_whose_client_hangs_ends_like_one_that_is_fenced() -> None:
    ended = subprocess.run([sys.executable, "-c", _HANGING], check=False, capture_output=True, timeout=120)
    assert ended.returncode == FENCED_STATUS
    assert ended.stderr.endswith(b": hangs, and it is 2\n")
