"""The gate of a handler, at the table: what it lets through, and what it takes back."""

from __future__ import annotations

from collections import deque

import pytest
from confluent_kafka import Message

from kunicorn import Batch, Record
from kunicorn.handler.call import OfSome, OfUncalled, calls_for
from kunicorn.handler.config import CircuitBreaking, Decoding, FilterRule, HandlerConfig, RateLimiting
from kunicorn.handler.decode import NotDecodableYet, Undecodable
from kunicorn.handler.encode import NotEncodableYet
from kunicorn.handler.filter import filters_of
from kunicorn.handler.load import DrainDeadline, Handler
from kunicorn.handler.retry import End
from kunicorn.ipc.clock import NANOSECONDS, now_ns
from kunicorn.positions import TopicPartition
from kunicorn.worker.delivery import ON_ACKNOWLEDGEMENT
from kunicorn.worker.executors.inline import InlineExecutor
from kunicorn.worker.executors.together import TogetherExecutor
from kunicorn.worker.limits.gate import Drop, Drops, Gate, gate_of
from kunicorn.worker.progress import Attempt, Bounds, InFlight, Slots
from kunicorn.worker.stats import Counters
from tests.fakes.whole_worker import LETTERS, WholeWorker, record
from tests.unit.worker import sending_handlers
from tests.unit.worker.produce.output_batches import taken
from tests.unit.worker.tables import P0, P1, Table, offsets_of

OPENS_AT_ONCE = CircuitBreaking(
    ["builtins.OSError"], failure_share=0.1, window_ms=10_000, min_calls=1, open_ms=1, probes=1
)


def gate(
    circuit_breaker: CircuitBreaking | None = None, rate_limit: RateLimiting | None = None, mode: str = "record"
) -> Gate:
    config = HandlerConfig("shop:handle", mode, {}, 1, 1, 0, 0, circuit_breaker=circuit_breaker, rate_limit=rate_limit)
    made = gate_of(config, Counters())
    assert made is not None
    return made


def ten(gate: Gate, *, runs: bool) -> Table:
    slots = Slots("none", 4, gate=gate) if not runs else Slots("partition", 1, runs=True, gate=gate)
    if runs:
        slots.pace.size = 10
    table = Table(slots)
    table.begin(P0, *range(10))
    return table


def test_a_handler_without_limits_has_no_gate() -> None:
    assert gate_of(HandlerConfig("shop:handle", "record", {}, 1, 1, 0, 0), Counters()) is None


def test_of_several_calls_at_a_time_one_probes() -> None:
    breaking = gate(OPENS_AT_ONCE)
    table = ten(breaking, runs=False)
    first = table.take()
    assert breaking.failed(first, OSError("away"), now_ns() - 10_000_000) is not None
    (probe,) = table.started()
    assert table.started() == [], "one at a time"
    table.handle(probe)
    assert not breaking.broken
    assert len(table.started()) == 3, "all but the slot that the first still has"


def test_all_rows_wait_that_failed_in_the_call_which_opened_the_circuit_breaker_and_other_outcomes_stand() -> None:
    config = HandlerConfig(
        f"{sending_handlers.__name__}:away_at_first",
        "batch",
        {},
        10,
        1,
        0,
        0,
        on_failure="dead_letter",
        circuit_breaker=OPENS_AT_ONCE,
    )
    sending_handlers.forget()
    sending_handlers.hopeless.update({2, 7})
    with WholeWorker(config, map(record, range(10)), None) as worker:
        worker.hand_out()
        worker.until_consumed(10)
        assert worker.brokers.values(LETTERS) == []
    first, *later = sending_handlers.calls
    assert first == list(range(10))
    assert [offset for call in later for offset in call] == [0, 1, 3, 4, 5, 6, 8, 9]


def test_no_handler_waits_for_a_suspect_of_one_whose_gate_is_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [now_ns()]
    monkeypatch.setattr("kunicorn.worker.partitions.now_ns", lambda: clock[0])
    breaking, others = gate(OPENS_AT_ONCE), Slots("none", 4)
    table = Table(Slots("none", 4, gate=breaking), others={"other": others})
    table.begin(P0, 0, 1, 2, suspects=[1, 2])
    table.begin(TopicPartition("other", 1), 0, 1, 2)
    first, other = table.take(), table.table.start_next(others)
    assert other is not None
    assert table.started() == [], "a suspect is next, and those two are in hand"
    assert table.table.start_next(others) is None, "nothing is to be beside it"
    assert breaking.failed(first, OSError("away"), clock[0]) is not None
    table.table.park(Attempt(first), "circuit_breaker", "why")
    table.table.balance(clock[0])
    assert table.table.startable(others), "the suspect cannot start before the gate opens"
    beside = table.table.start_next(others)
    assert beside is not None
    clock[0] += 2_000_000
    assert table.started() == [], "the gate is open, and the suspect waits for what is in hand"
    table.table.balance(clock[0])
    assert not table.table.startable(others)
    for flight in (other, beside):
        table.handle(flight)
    assert table.take().offset == 1
    assert table.table.start_next(others) is None


def test_a_probe_that_is_put_back_leaves_its_place_to_another_one() -> None:
    breaking = gate(OPENS_AT_ONCE)
    table = ten(breaking, runs=False)
    breaking.failed(table.take(), OSError("away"), now_ns() - 10_000_000)
    (probe,) = table.started()
    table.table.put_back(probe)
    assert len(table.started()) == 1
    assert breaking.broken


@pytest.mark.parametrize("per", ["service", "key"])
def test_records_of_a_run_that_the_handler_did_not_get_to_cost_nothing(per: str) -> None:
    table = ten(gate(rate_limit=RateLimiting(0.000_001, 10, per, "records")), runs=True)
    flight = table.take()
    assert len(flight.messages) == 10
    table.handle(flight, 4)
    flight = table.take()
    assert len(flight.messages) == 6
    table.handle(flight)
    table.fetch(P0, 10)
    assert table.started() == [], "ten tokens, and ten records"


def behind_a_refused_output(limited: Gate, size: int) -> tuple[Table, InFlight]:
    """So many records in hand, while the output of the one before them is refused."""
    table = Table(Slots("partition", 1, runs=True, gate=limited), ON_ACKNOWLEDGEMENT)
    table.begin(P0, *range(size + 1))
    refused = table.take()
    table.handle(refused, sends=True)
    table.slots.pace.size = size
    in_hand = table.take()
    batch = taken(table.outbox)
    table.table.rewind(table.outbox.refuse([(batch.entries[0], ValueError("too large"))]))
    table.outbox.done(batch)
    return table, in_hand


def used_of(limited: Gate) -> float:
    used = limited.rate_use()
    assert used is not None
    return used[0]


def test_a_record_that_was_handled_and_comes_again_as_an_output_before_it_is_refused_has_used_its_token() -> None:
    limited = gate(rate_limit=RateLimiting(0.001, 10, "service", "records"))
    table, in_hand = behind_a_refused_output(limited, 1)
    table.handle(in_hand)
    assert used_of(limited) == 2, "both were called"


@pytest.mark.parametrize("runs", [True, False])
def test_a_record_whose_partition_was_lost_while_it_was_handled_has_used_its_token(*, runs: bool) -> None:
    limited = gate(rate_limit=RateLimiting(0.001, 10, "service", "records"))
    slots = Slots("partition", 1, runs=True, gate=limited) if runs else Slots("none", 4, gate=limited)
    table = Table(slots, ON_ACKNOWLEDGEMENT)
    table.begin(P0, 0)
    in_hand = table.take()
    table.table.stop([1], lost=True)
    table.handle(in_hand, sends=True)
    assert used_of(limited) == 1


@pytest.mark.parametrize("fails", [True, False])
def test_of_a_run_before_which_an_output_is_refused_only_what_the_handler_did_not_get_to_costs_nothing(
    *, fails: bool
) -> None:
    limited = gate(rate_limit=RateLimiting(0.001, 10, "service", "records"))
    table, in_hand = behind_a_refused_output(limited, 5)
    assert len(in_hand.messages) == 5
    if fails:
        assert table.table.failed(in_hand, 1, 10, OfSome(ValueError("no"))) is None
    else:
        table.handle(in_hand, 2)
    assert used_of(limited) == 3, "the refused one, and two of the run"


def drop_all(record: Record) -> bool:
    """A filter."""
    return False


def decode_later(data: bytes) -> object:
    """A decoder whose registry is away."""
    raise NotDecodableYet("away")


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize(
    ("why", "used"),
    [
        ("it is called", 1),
        ("the loop looks around first", 0),
        ("a filter drops all records", 0),
        ("the first record cannot be decoded", 0),
        ("no record can be decoded yet", 0),
        ("the last record cannot be decoded", 1),
        ("the handler is interrupted", 1),
        ("its output cannot be encoded yet", 1),
    ],
)
def test_a_batch_that_does_not_come_to_the_handler_gives_its_calls_token_back(
    why: str, used: int, *, across: bool
) -> None:
    called = []

    def handle(records: Batch) -> None:
        called.append(len(records))
        if why == "the handler is interrupted":
            raise DrainDeadline
        if why == "its output cannot be encoded yet":
            raise NotEncodableYet("away")

    filters = [FilterRule(function=f"{__name__}:drop_all")] if why.startswith("a filter") else []
    value = f"{__name__}:decode_later" if why == "no record can be decoded yet" else "json"
    config = HandlerConfig(
        "shop:handle", "batch", {}, 10, 1, 0, 0, rate_limit=RateLimiting(0.001, 9, "service", "calls"),
        decoding=Decoding(value), filters=filters,
    )  # fmt: skip
    drops: Drops = deque()
    limited = gate_of(config, Counters(), drops)
    assert limited is not None
    told = filters_of(config, lambda message, name, *, saved: drops.append(Drop(message, saved)))
    slots = Slots("partition", 1, runs=True, bounds=Bounds(10, None, 0, 0), gate=limited, across=across)
    table = Table(slots)
    values = [b"1"] * 6
    if why.endswith("cannot be decoded"):
        values[0 if "first" in why else -1] = b"{"
    for partition, rows in ((P0, values[:3]), (P1, values[3:])) if across else ((P0, values),):
        table.begin(partition)
        given = [
            Message(topic=partition.topic, partition=partition.partition, offset=at, value=value, timestamp=(1, 1000))
            for at, value in enumerate(rows)
        ]
        table.table.feed(partition, 0, given, 0)
    calls = calls_for(Handler("shop:handle", handle, False, filters=told), config)
    executor = (TogetherExecutor if across else InlineExecutor)(calls, table.ledger.cells)
    failed: list[tuple[InFlight, BaseException]] = []

    class Told:
        def fail(self, flight: InFlight, error: BaseException, calls: int = 1) -> None:
            table.table.put_down(flight)
            failed.append((flight, error))

        def finished(self) -> None:
            raise AssertionError

    executor.begin(table.table, slots, Told())
    if why == "the loop looks around first":
        table.table.interrupts.request()
    assert executor.serve()
    for flight, error in failed:
        assert table.table.take_up(flight, now_ns())
        limited.failed(flight, error, now_ns())
    limited.room(now_ns())
    assert (len(called), used_of(limited)) == (used, used)


def test_a_call_that_a_drain_deadline_ends_has_used_its_token() -> None:
    limited = gate(rate_limit=RateLimiting(0.001, 10, "service", "records"))
    table = ten(limited, runs=False)
    table.table.put_back(table.take())
    assert used_of(limited) == 1


@pytest.mark.parametrize("counts", ["records", "calls"])
@pytest.mark.parametrize("met_by", ["a drain deadline", "the loop"])
def test_records_that_were_kept_from_the_handler_and_are_put_back_cost_nothing(counts: str, met_by: str) -> None:
    limited = gate(rate_limit=RateLimiting(0.001, 9, "service", counts), mode="batch")
    table = Table(Slots("partition", 1, runs=True, bounds=Bounds(3, None, 0, 0), gate=limited))
    table.begin(P0, *range(3))
    decided = table.take()
    decided.decided = ValueError("as its batch's call has said")
    table.table.put_down(decided)
    if met_by == "the loop":
        decided.lane.overtaken = decided
        assert not table.table.take_up(decided, now_ns())
    else:
        table.table.stop([1])
        table.table.let_go([1])
    assert used_of(limited) == 0


@pytest.mark.parametrize("counts", ["records", "calls"])
def test_records_that_end_without_a_call_cost_nothing(counts: str) -> None:
    limited = gate(rate_limit=RateLimiting(0.001, 9, "service", counts), mode="batch")
    table = Table(Slots("partition", 1, runs=True, bounds=Bounds(3, None, 0, 0), gate=limited))
    table.begin(P0, *range(3))
    used = limited.rate_use()
    limited.uncalled(table.take(), now_ns())
    assert limited.rate_use() == used


@pytest.mark.parametrize(("counts", "used"), [("records", 10), ("calls", 1)])
def test_rows_that_their_call_has_given_up_cost_nothing_more_when_their_letters_are_sent(
    counts: str, used: int
) -> None:
    config = HandlerConfig(
        f"{sending_handlers.__name__}:giving_up_singly",
        "batch",
        {},
        10,
        1,
        0,
        0,
        on_failure="dead_letter",
        rate_limit=RateLimiting(0.001, 100, "service", counts),
    )
    sending_handlers.forget()
    sending_handlers.hopeless.update({3, 7})
    with WholeWorker(config, map(record, range(10)), None) as worker:
        worker.hand_out()
        worker.until_consumed(10)
        assert worker.brokers.values(LETTERS) == [b"3", b"7"]
        (limited,) = worker.made.gates
        assert limited is not None
        assert limited.rate_use() == (used, 0)


@pytest.mark.parametrize(("counts", "left"), [("records", 2), ("calls", 11)])
def test_records_of_another_partition_in_the_same_call_cost_what_they_are(counts: str, left: int) -> None:
    limited = gate(rate_limit=RateLimiting(0.001, 12, "service", counts), mode="batch")
    table = Table(Slots("partition", 1, runs=True, bounds=Bounds(10, None, 0, 0), gate=limited))
    for partition in (P0, P1):
        table.begin(partition, *range(5))
    assert len(table.take().messages) == 5
    beside = table.table.start_beside(table.slots, 5, 1000)
    assert beside is not None
    assert len(beside.messages) == 5
    used = limited.rate_use()
    assert used is not None
    assert 12 - used[0] == left


@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize("is_due", [True, False])
def test_what_waits_for_its_keys_rate_gives_its_token_back_when_its_partition_leaves(
    *, runs: bool, is_due: bool
) -> None:
    table = ten(gate(rate_limit=RateLimiting(0.001, 1, "key", "records")), runs=runs)
    table.handle(table.take())
    assert table.started() == []
    waiting = [flight for flight, _ in table.table.held()]
    for grant in (3, 5, 7):
        for flight in waiting if is_due else ():
            table.table.try_again(flight)
        table.table.stop([grant - 2])
        table.start(P0, grant, 1)
        table.table.begin_turn(0)
        table.fetch(P0, 1)
        assert table.started() == []
        ((flight, until),) = table.table.held()
        waiting = [flight]
        assert until - now_ns() < 1001 * NANOSECONDS, "one token's time, however often it has left"


def test_what_waits_for_its_keys_rate_pays_anew_where_refused_records_are_put_before_it() -> None:
    limited = gate(rate_limit=RateLimiting(0.001, 2, "key", "records"))
    table = Table(Slots("partition", 1, runs=True, gate=limited), ON_ACKNOWLEDGEMENT)
    table.begin(P0, 0, 1, 2)
    refused = table.take()
    table.handle(refused, sends=True)
    table.handle(table.take(), sends=True)
    assert table.started() == []
    ((waiting, _),) = table.table.held()
    batch = taken(table.outbox)
    table.table.rewind(table.outbox.refuse([(batch.entries[0], ValueError("too large"))]))
    table.outbox.done(batch)
    table.table.put_back(refused)
    table.table.try_again(waiting)
    assert table.started() == []
    ((again, until),) = table.table.held()
    assert offsets_of(again) == [0]
    assert until - now_ns() < 1001 * NANOSECONDS, "for one token, as the one that waited has given its own back"


@pytest.mark.parametrize(("per_second", "seconds"), [(0.001, 1000), (0.004, 250), (0.000_25, 4000)])
def test_what_waits_for_its_keys_rate_goes_on_at_another_one_in_the_same_order(per_second: float, seconds: int) -> None:
    limited = gate(rate_limit=RateLimiting(0.001, 1, "key", "records", "tenant"))
    table = Table(Slots("none", 4, gate=limited))
    table.begin(P0, *range(5))
    table.handle(table.take())
    assert table.started() == [], "all are of one tenant"
    before = [flight for flight, _ in table.table.held()]
    waits = limited.rate_use()
    table.table.change_rate(limited, per_second, 1)
    now, held = now_ns(), list(table.table.held())
    assert [flight for flight, _ in held] == before
    expected = [seconds * (place + 1) for place in range(4)]
    assert [(until - now) / NANOSECONDS for _, until in held] == pytest.approx(expected, abs=seconds / 2)
    assert f"limited to {per_second:g} a second" in held[0][0].why
    assert limited.rate_use() == waits, "none of them waits a second time"


def test_what_waited_for_its_keys_rate_when_that_changed_and_waits_for_a_retry_now_keeps_that_time() -> None:
    limited = gate(rate_limit=RateLimiting(0.001, 1, "key", "records"))
    table = ten(limited, runs=False)
    table.handle(table.take())
    assert table.started() == []
    (first, *_), *_ = list(table.table.held())
    table.table.change_rate(limited, 0.004, 1)
    table.table.try_again(first)
    assert table.take() is first, "the loop had found its wait over"
    table.table.park(Attempt(first), "retry", "it failed")
    assert first not in [flight for flight, _ in table.table.held()]


# -- batches with records that cannot be decoded -----------------------------------------------------------------------


def batched(gate: Gate, size: int) -> Table:
    return Table(Slots("partition", 1, runs=True, bounds=Bounds(size, None, 0, 0), gate=gate))


def pass_over_undecodable(table: Table, gate: Gate, flight: InFlight, done: int) -> None:
    """That many records of the flight are handled, and the next one cannot be decoded."""
    if done:
        table.ledger.cells[flight.tracker.cell] = offsets_of(flight)[done - 1] + 1
    rest = table.table.failed(flight, done, 10, OfUncalled(Undecodable("no JSON")))
    assert rest is not None
    gate.failed(rest, Undecodable("no JSON"), now_ns())
    table.table.pass_over(Attempt(rest), End.SKIP, None)


def test_records_that_the_handler_is_not_called_with_take_no_token_however_often_they_come() -> None:
    limiting = gate(rate_limit=RateLimiting(0.001, 1000.0, "service", "records"))
    table = batched(limiting, 100)
    table.begin(P0, *range(100))
    seen = 0
    while (flight := table.table.start_next(table.slots)) is not None:
        offsets = offsets_of(flight)
        seen += (done := next(at for at, offset in enumerate(offsets) if offset % 10 == 9))
        pass_over_undecodable(table, limiting, flight, done)
    used = limiting.rate_use()
    assert used is not None
    assert (seen, round(used[0])) == (90, 90)


@pytest.mark.parametrize(("error", "used"), [(NotDecodableYet("away"), 0), (NotEncodableYet("away"), 1)])
def test_a_call_whose_output_cannot_be_encoded_yet_keeps_its_token(error: Exception, used: int) -> None:
    limiting = gate(rate_limit=RateLimiting(0.001, 10.0, "service", "records"))
    table = ten(limiting, runs=False)
    limiting.failed(table.take(), error, now_ns())
    found = limiting.rate_use()
    assert found is not None
    assert round(found[0]) == used


def test_a_call_that_has_done_all_it_had_counts_although_the_record_behind_cannot_be_decoded() -> None:
    half = CircuitBreaking(["builtins.OSError"], failure_share=0.5, window_ms=60_000, min_calls=5, open_ms=1, probes=1)
    breaking = gate(half)
    table = batched(breaking, 10)
    table.begin(P0)
    for call in range(50):
        table.fetch(P0, *range(10 * call, 10 * call + 10))
        flight = table.take()
        if call % 10 == 9:
            failed = table.table.failed(flight, 0, 10, OfSome(OSError("away"), count=10))
            assert failed is not None
            breaking.failed(failed, OSError("away"), now_ns())
            table.table.pass_over(Attempt(failed), End.SKIP, None)
        else:
            pass_over_undecodable(table, breaking, flight, 9)
    assert not breaking.broken, "one call in ten has failed"


def test_batches_of_which_nothing_comes_to_the_handler_hide_no_later_call_from_the_breaker() -> None:
    drops: Drops = deque()
    config = HandlerConfig("shop:handle", "batch", {}, 10, 1, 0, 0, circuit_breaker=OPENS_AT_ONCE)
    breaking = gate_of(config, Counters(), drops)
    assert breaking is not None
    table = batched(breaking, 10)
    table.begin(P0)
    for call in range(40):
        table.fetch(P0, 2 * call, 2 * call + 1)
        flight = table.take()
        drops.append(Drop(flight.messages[0], saved=True))
        pass_over_undecodable(table, breaking, flight, 1)
    for offset in range(80, 110):
        table.fetch(P0, offset)
        table.handle(table.take())
    table.fetch(P0, 110)
    assert breaking.failed(table.take(), OSError("away"), now_ns()) is None, "one of thirty-one"
    assert not breaking.broken
