"""Handlers are told which partitions come and go, before they are fetched and before they are reported."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from kunicorn.handler.call import calls_of
from kunicorn.handler.load import DrainDeadline, Handler
from kunicorn.handler.registry import HandlerRegistry, Handling
from kunicorn.handler.retry import Policies, RetryPolicy
from kunicorn.ipc.messages import Failed, FailureKind, FetcherStart, FetcherStopped, FromWorker, Stopped
from kunicorn.observe.catalogue import HOOK_FAILURES
from kunicorn.positions import TopicPartition
from kunicorn.worker.executors.inline import InlineExecutor
from kunicorn.worker.hooks import Hooks, Revocations, stored_offsets
from kunicorn.worker.progress import Interrupts
from kunicorn.worker.stats import Counters

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
LATER = 1 << 62


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


class Fetched:
    """Stands for the fetcher: what it was told, in order; it lets go of everything at once."""

    def __init__(self, said: list[Any], report: Callable[[FromWorker], None]) -> None:
        self._report = report
        self.open: dict[int, int] = {}
        self._said = said

    def start(self, starts: Iterable[FetcherStart]) -> None:
        for start in starts:
            self.open[start.grant] = start.offset
            self._said.append(("fetch", start.grant, start.offset))

    def stop(self, numbers: Iterable[int], *, lost: bool = False) -> None:
        stopped = [Stopped(number, self.open.pop(number) + 5, 0) for number in list(numbers) if number in self.open]
        if stopped:
            self._report(FetcherStopped(stopped))

    def drain(self) -> None:
        self.stop(list(self.open))


class Stage:
    """One handler that has these hooks, and what calls them. What happens is in `said`."""

    def __init__(self, **hooks: Any) -> None:
        self.said: list[Any] = []
        told: dict[str, Any] = {name: self._noted(name, hook) for name, hook in hooks.items()}
        self.handling = handling(Handler("shop:Orders", lambda record: None, False, **told))
        handlings, interrupts, counters = HandlerRegistry([self.handling], [[]]), Interrupts(), Counters()
        self.revocations = Revocations(handlings, self.said.append, interrupts, counters)
        self.fetched = Fetched(self.said, self.revocations.report)
        self.hooks = Hooks(handlings, self.revocations, self.fetched, interrupts, counters)
        self._counters = counters
        signal.signal(signal.SIGUSR1, lambda number, frame: self.hooks.on_signal())  # As in a worker.

    def _noted(self, name: str, hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noted(partitions: Any) -> Any:
            self.said.append((name, partitions))
            return hook(partitions)

        return noted

    def start(self, *starts: FetcherStart) -> None:
        self.hooks.start(starts)

    def begin(self, *starts: FetcherStart) -> None:
        """Start these, and have the hooks called that are due."""
        self.start(*starts)
        self.hooks.call_due(0)

    def failures(self) -> dict[str, int]:
        """How often hooks raised, by their names."""
        counted, _ = self._counters.take()
        return {each.labels[0]: each.amount for each in counted if each.name == HOOK_FAILURES.name}

    def taken(self) -> list[Any]:
        said, self.said[:] = list(self.said), []
        return said


def handling(handler: Handler) -> Handling[Any]:
    executor = InlineExecutor(calls_of(handler, "record"), memoryview(b""))
    return Handling(handler, executor, Policies(RetryPolicy(1, 1, 1)), None)


def start(grant: int, tp: TopicPartition = P0, offset: int = 100, **more: Any) -> FetcherStart:
    return FetcherStart(grant, grant, *tp, offset, 3, **more)


def nothing(_: object) -> None:
    """A hook that returns at once."""


def test_without_hooks_a_partition_goes_straight_through() -> None:
    stage = Stage()
    stage.start(start(1))
    stage.hooks.stop([1])
    assert stage.taken() == [("fetch", 1, 100), FetcherStopped([Stopped(1, 105, 0)])]
    assert not stage.hooks.waiting


def test_on_assigned_returns_before_the_first_fetch_and_knows_the_offsets() -> None:
    stage = Stage(on_assigned=nothing)
    stage.start(start(1), start(2, P1, 7))
    assert stage.taken() == []
    stage.hooks.call_due(0)
    assert stage.taken() == [("on_assigned", {P0: 100, P1: 7}), ("fetch", 1, 100), ("fetch", 2, 7)]


def test_an_on_assigned_that_raises_is_called_again_and_nothing_is_fetched_meanwhile() -> None:
    answers = [ValueError("the cache is cold"), None]

    def on_assigned(_: object) -> None:
        if answer := answers.pop(0):
            raise answer

    stage = Stage(on_assigned=on_assigned)
    stage.begin(start(1))
    assert stage.taken() == [("on_assigned", {P0: 100})]
    (parked,) = stage.hooks.parked()
    assert (parked.grant, parked.waits_for) == (1, "handler")
    assert parked.why.startswith("on_assigned raised ValueError: the cache is cold")
    assert stage.failures() == {"on_assigned": 1}
    stage.hooks.call_due(0)
    assert stage.taken() == [], "not before its time"
    stage.hooks.call_due(LATER)
    assert stage.taken()[-1] == ("fetch", 1, 100)
    assert stage.hooks.parked() == []


def test_one_that_waits_for_its_handler_is_let_go_of_at_once_and_its_handler_is_not_told() -> None:
    stage = Stage(on_assigned=nothing, on_revoked=nothing)
    stage.start(start(1))
    stage.hooks.stop([1])
    assert stage.taken() == [FetcherStopped([Stopped(1, 100, 3)])]
    stage.hooks.call_due(0)
    assert stage.taken() == []


def test_a_stop_that_comes_while_the_handler_is_being_told_is_not_lost() -> None:
    stage: Stage = Stage(on_assigned=lambda _: stage.hooks.stop([1]), on_revoked=nothing)
    stage.begin(start(1))
    stage.hooks.call_due(0)
    assert stage.taken()[1:] == [
        ("fetch", 1, 100),
        ("on_revoked", {P0: 105}),
        FetcherStopped([Stopped(1, 105, 0)]),
    ]


def test_a_worker_that_is_told_to_end_while_the_handler_is_being_told_lets_go_of_that_partition_too() -> None:
    stage: Stage = Stage(on_assigned=lambda _: stage.hooks.drain(), on_revoked=nothing)
    stage.begin(start(1))
    stage.hooks.finish()
    assert stage.taken()[1:] == [
        ("fetch", 1, 100),
        ("on_revoked", {P0: 105}),
        FetcherStopped([Stopped(1, 105, 0)]),
    ]
    assert stage.fetched.open == {}


def test_a_partition_that_is_stopped_while_its_handler_fails_to_take_it_on_is_reported_and_not_offered_again() -> None:
    def on_assigned(_: object) -> None:
        stage.hooks.stop([1])
        raise ValueError("the cache is cold")

    stage = Stage(on_assigned=on_assigned, on_revoked=nothing)
    stage.begin(start(1))
    assert stage.taken()[1:] == [FetcherStopped([Stopped(1, 100, 3)])]
    stage.hooks.call_due(LATER)
    assert stage.taken() == [], "another member may have it by now"
    assert stage.hooks.parked() == []


def test_a_partition_that_comes_does_not_wait_with_one_that_its_handler_did_not_take_on_nor_is_that_one_hurried() -> (
    None
):
    def on_assigned(partitions: object) -> None:
        if partitions == {P0: 100}:
            raise ValueError("the cache is cold")

    stage = Stage(on_assigned=on_assigned)
    stage.begin(start(1))
    stage.begin(start(2, P1))
    assert stage.taken() == [("on_assigned", {P0: 100}), ("on_assigned", {P1: 100}), ("fetch", 2, 100)]


def test_of_a_partition_without_an_offset_the_handler_is_told_neither_that_it_comes_nor_that_it_goes() -> None:
    stage = Stage(on_assigned=nothing, on_revoked=nothing)
    stage.begin(start(1, offset=-1), start(2, P1))
    refused = Failed(1, FailureKind.PARTITION, -1, -1, "no offset")
    stage.revocations.report(refused)
    stage.hooks.call_due(0)
    assert stage.taken() == [("on_assigned", {P1: 100}), ("fetch", 1, -1), ("fetch", 2, 100), refused]


def test_on_revoked_returns_before_the_partition_is_reported() -> None:
    stage = Stage(on_revoked=nothing)
    stage.start(start(1))
    stage.hooks.stop([1])
    assert stage.taken() == [("fetch", 1, 100)]
    stage.hooks.call_due(0)
    assert stage.taken() == [("on_revoked", {P0: 105}), FetcherStopped([Stopped(1, 105, 0)])]


def test_what_on_revoked_raises_is_counted_and_the_offset_stands() -> None:
    def on_revoked(_: object) -> None:
        raise OSError("the disk is full")

    stage = Stage(on_revoked=on_revoked)
    stage.start(start(1))
    stage.hooks.stop([1])
    stage.hooks.call_due(0)
    assert stage.taken()[-1] == FetcherStopped([Stopped(1, 105, 0)])
    assert stage.failures() == {"on_revoked": 1}


def test_on_lost_takes_the_place_of_on_revoked() -> None:
    stage = Stage(on_revoked=nothing, on_lost=nothing)
    stage.start(start(1), start(2, P1))
    stage.hooks.stop([1], lost=True)
    stage.hooks.stop([2])
    stage.hooks.finish()
    assert stage.taken()[2:] == [
        ("on_revoked", {P1: 105}),
        ("on_lost", {P0: 105}),
        FetcherStopped([Stopped(1, 105, 0), Stopped(2, 105, 0)]),
    ]


def test_a_halted_partition_is_revoked_for_the_handler() -> None:
    stage = Stage(on_revoked=nothing)
    stage.start(start(1))
    failed = Failed(1, FailureKind.HANDLER, 102, 3, "it failed")
    stage.revocations.report(failed)
    stage.hooks.call_due(0)
    assert stage.taken()[1:] == [("on_revoked", {P0: 102}), failed]


def test_a_drain_sees_everything_off() -> None:
    stage = Stage(on_assigned=nothing, on_revoked=nothing)
    stage.begin(start(1))
    stage.start(start(2, P1))
    stage.taken()
    stage.hooks.drain()
    stage.hooks.finish()
    assert stage.taken() == [
        FetcherStopped([Stopped(2, 100, 3)]),
        ("on_revoked", {P0: 105}),
        FetcherStopped([Stopped(1, 105, 0)]),
    ]


def test_a_hook_that_hangs_is_interrupted_when_its_partition_has_to_be_given_up() -> None:
    async def on_revoked(_: object) -> None:
        asyncio.get_running_loop().call_soon(stage.hooks.end_drain, [1])
        await asyncio.sleep(3600)

    stage = Stage(on_revoked=on_revoked)
    stage.start(start(1))
    stage.hooks.stop([1])
    stage.hooks.call_due(0)
    assert stage.taken()[-1] == FetcherStopped([Stopped(1, 105, 0)])
    assert stage.failures() == {"on_revoked": 1}
    stage.handling.calls.close()


@pytest.mark.parametrize("name", ["on_assigned", "load_offsets", "store_offsets"])
def test_a_hook_that_takes_partitions_on_and_hangs_is_interrupted_and_called_again(name: str) -> None:
    async def hang(_: object) -> None:
        asyncio.get_running_loop().call_soon(stage.hooks.end_drain, [1])
        await asyncio.wait_for(asyncio.Event().wait(), 60)

    hooks: dict[str, Any] = {"load_offsets": lambda asked: {}, "store_offsets": nothing}
    stage = Stage(**{**hooks, name: hang})
    stage.begin(start(1))
    assert stage.failures() == {name: 1}
    (waiting,) = stage.hooks.parked()
    assert waiting.why.startswith(f"{name} raised DrainDeadline")
    stage.handling.calls.close()


def test_every_async_hook_runs_on_one_loop_beside_a_plain_handler() -> None:
    loops = set()

    async def hook(_: object) -> None:
        loops.add(asyncio.get_running_loop())

    stage = Stage(on_assigned=hook, on_revoked=hook)
    stage.begin(start(1))
    stage.hooks.stop([1])
    stage.hooks.finish()
    assert len(loops) == 1
    stage.handling.calls.close()
    assert loops.pop().is_closed()


# -- offsets that the handler keeps ----------------------------------------------------------------------------------


def test_a_partition_starts_where_load_offsets_says_and_else_where_the_group_does() -> None:
    stage = Stage(load_offsets=lambda partitions: {P0: 40}, store_offsets=nothing, on_assigned=nothing)
    stage.begin(start(1), start(2, P1))
    assert stage.taken() == [
        ("load_offsets", [P0, P1]),
        ("store_offsets", {P1: 100}),
        ("on_assigned", {P0: 40, P1: 100}),
        ("fetch", 1, 40),
        ("fetch", 2, 100),
    ]


def test_a_position_that_is_not_in_the_log_is_replaced_whatever_the_handler_keeps() -> None:
    stage = Stage(load_offsets=lambda partitions: {P0: 40}, store_offsets=nothing)
    stage.begin(start(1, offset=900, reset=True))
    assert stage.taken() == [("store_offsets", {P0: 900}), ("fetch", 1, 900)]


def test_a_store_that_fails_has_the_partition_wait() -> None:
    def store_offsets(_: object) -> None:
        raise ConnectionError

    stage = Stage(load_offsets=lambda partitions: {}, store_offsets=store_offsets)
    stage.begin(start(1))
    assert ("fetch", 1, 100) not in stage.taken()
    assert stage.failures() == {"store_offsets": 1}


def test_partitions_that_are_fetched_go_on_while_others_wait_for_load_offsets() -> None:
    def load_offsets(partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        if P1 in partitions:
            raise TimeoutError("the database is down")
        return {}

    stage = Stage(load_offsets=load_offsets)
    stage.begin(start(1))
    stage.begin(start(2, P1))
    assert stage.fetched.open == {1: 100}
    assert [each.grant for each in stage.hooks.parked()] == [2]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "returned NoneType; return a dict"),
        ({P0: "7"}, "gave orders-0 a str"),
        ({P0: True}, "gave orders-0 a bool"),
        ({P0: -2}, "gave orders-0 the offset -2; leave out"),
        ({P0: 2**63}, "gave orders-0 an offset beyond 9223372036854775807"),
        ({P0: 10**5000}, "gave orders-0 an offset beyond 9223372036854775807"),
    ],
)
def test_nonsense_from_load_offsets_is_refused_in_words(returned: object, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        stored_offsets(returned, [P0])


def test_of_two_handlers_each_is_told_of_its_own_topics() -> None:
    said: list[Any] = []
    orders = handling(Handler("shop:Orders", nothing, False, on_assigned=lambda p: said.append(("orders", *p))))
    refunds = handling(Handler("shop:Refunds", nothing, False, on_assigned=lambda p: said.append(("refunds", *p))))
    handlings, interrupts = HandlerRegistry([orders, refunds], [["orders"], ["^refunds-.*"]]), Interrupts()
    counters = Counters()
    revocations = Revocations(handlings, said.append, interrupts, counters)
    hooks = Hooks(handlings, revocations, Fetched([], revocations.report), interrupts, counters)
    eu = TopicPartition("refunds-eu", 0)
    hooks.start([start(1), start(2, eu)])
    hooks.call_due(0)
    assert said == [("orders", P0), ("refunds", eu)]


class Drained(Stage):
    """A stage of which drain budgets end while a hook runs."""

    def __init__(self, **happens: Callable[[Drained], None]) -> None:
        """`happens`: see `during`."""
        self.interrupted: list[tuple[str, list[TopicPartition]]] = []
        """Hooks that met `DrainDeadline`, and with which partitions."""
        self._during = happens
        super().__init__(**{name: self._hook(name) for name in ("on_assigned", "on_revoked")})

    def _hook(self, name: str) -> Callable[[Iterable[TopicPartition]], None]:
        def hook(partitions: Iterable[TopicPartition]) -> None:
            happens = self._during.pop(name, None)
            try:
                if happens is not None:
                    happens(self)
            except DrainDeadline:
                self.interrupted.append((name, list(partitions)))
                raise

        return hook

    def begin(self, *starts: FetcherStart) -> None:
        """Have these fetched."""
        self.start(*starts)
        self.hooks.call_due(LATER)

    def during(self, **happens: Callable[[Drained], None]) -> None:
        """What happens while each of these hooks runs, the next time."""
        self._during |= happens


def test_a_hook_is_interrupted_when_the_drain_budget_of_its_partition_is_over() -> None:
    stage = Drained(on_revoked=lambda stage: stage.hooks.end_drain([1]))
    stage.begin(start(1))
    stage.hooks.stop([1])
    stage.hooks.call_due(LATER)
    assert stage.interrupted == [("on_revoked", [P0])]
    assert stage.taken()[-1] == FetcherStopped([Stopped(1, 105, 0)]), "its offset stands"


def test_the_drain_budget_of_a_partition_that_waits_for_no_hook_interrupts_none() -> None:
    """It may be in hand in a thread. The hook's own partition moves to another worker, and nobody waits for that."""
    stage = Drained(on_revoked=lambda stage: stage.hooks.end_drain([2]))
    stage.begin(start(1), start(2, P1))
    stage.hooks.stop([1])
    stage.hooks.call_due(LATER)
    assert stage.interrupted == []


def test_a_hook_that_a_partition_waits_for_when_its_drain_budget_is_over_is_interrupted() -> None:
    def meanwhile(stage: Drained) -> None:
        stage.hooks.stop([1])
        stage.hooks.end_drain([1])

    stage = Drained()
    stage.begin(start(1))
    stage.during(on_assigned=meanwhile)
    stage.begin(start(2, P1))
    assert stage.interrupted == [("on_assigned", [P1])]
    stage.hooks.call_due(LATER)
    assert stage.fetched.open == {2: 100}, "it is called again"


def test_a_hook_that_a_partition_comes_to_wait_for_when_its_drain_budget_is_over_is_interrupted() -> None:
    def meanwhile(stage: Drained) -> None:
        stage.hooks.end_drain([1])
        assert stage.interrupted == [], "its record is still in hand"
        stage.hooks.stop([1])

    stage = Drained()
    stage.begin(start(1))
    stage.during(on_assigned=meanwhile)
    stage.begin(start(2, P1))
    assert stage.interrupted == [("on_assigned", [P1])]


def test_a_hook_that_takes_on_a_partition_is_interrupted_when_the_drain_budget_of_that_is_over() -> None:
    def meanwhile(stage: Drained) -> None:
        stage.hooks.stop([1])
        stage.hooks.end_drain([1])

    stage = Drained(on_assigned=meanwhile)
    stage.begin(start(1))
    assert stage.interrupted == [("on_assigned", [P0])]
    assert stage.taken()[-1] == FetcherStopped([Stopped(1, 100, 3)])


def test_a_hook_that_begins_when_the_drain_budget_is_over_has_the_time_until_its_worker_is_aborted() -> None:
    stage = Drained(on_revoked=lambda stage: signal.raise_signal(signal.SIGUSR1))
    stage.begin(start(1))
    stage.hooks.end_drain([1])
    stage.hooks.stop([1])
    stage.hooks.call_due(LATER)
    assert stage.interrupted == []


def test_the_end_of_a_whole_workers_time_interrupts_whatever_hook_it_waits_for() -> None:
    stage = Drained(on_revoked=lambda stage: stage.hooks.end_drain(None))
    stage.begin(start(1))
    stage.hooks.drain()
    stage.hooks.call_due(LATER)
    assert stage.interrupted == [("on_revoked", [P0])]
