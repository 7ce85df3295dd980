"""One contract, in every way of calling handlers, whatever makes a record done, however a partition ends, and whoever
fetches.

Records are handled in their order (of the partition, of the key, or in none), nothing is begun once the worker has been
told that the partition ends, no offset passes an unfinished record, a record's outputs are acknowledged (or committed)
before its offset, the last word on a partition is exact, and in the end everything is accounted for. See `scene`.

All of them are told over librdkafka in each run of the tests; over our own fetcher those of `BOTH_FETCHERS` are, and of
outputs that are refused those of `EVERY_CODE` with each of the brokers' reasons. The others are `long`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from tests.contract.worker.assembled import Refused
from tests.contract.worker.plan import TOPIC, Way
from tests.contract.worker.scene import NEVER_FITS, Cell, Ending, Letter, Meeting, Moment, Refusal, play
from tests.contract.worker.supervised import Memory
from tests.contract.worker.ways import WAYS, YIELDING, fetchers
from tests.unit.settings.files import LEAST, problems

_SEEDS = 50

DONE = {"on return": None, "on acknowledgement": "at_least_once", "on commit": "transactions"}


def _moments(ending: Ending, delivery: str | None) -> Iterator[Moment]:
    match ending:
        case Ending.HALTED:
            yield from (Moment.FIRST_CALL, Moment.LATER_CALL)
        case Ending.REWOUND:
            yield from (Moment.FIRST_CALL, Moment.LATER_CALL, Moment.ON_ITS_WAY)
        case Ending.AT_ITS_STOP:
            yield Moment.IDLE
        case _:
            yield from (moment for moment in Moment if delivery is not None or moment is not Moment.ON_ITS_WAY)


def _every() -> Iterator[object]:
    for done, delivery in DONE.items():
        for name, ways in (WAYS | ({} if delivery is None else YIELDING)).items():
            for ending in Ending:
                # Nothing is sent that could be refused.
                if delivery is None and ending is Ending.REWOUND:
                    continue
                for fetcher, marks in fetchers(name).items():
                    what = f"{name}, done {done}, {ending}, {fetcher}"
                    yield pytest.param(ways, delivery, ending, fetcher, id=what, marks=marks)


_EVERY = pytest.mark.parametrize(("ways", "delivery", "ending", "fetcher"), [*_every()], indirect=["fetcher"])


@_EVERY
def test_the_contract_holds(
    memory: Memory, ways: Mapping[str, Way], delivery: str | None, ending: Ending, fetcher: str
) -> None:
    for moment in _moments(ending, delivery):
        play(Cell(ways, delivery, ending, moment, fetcher), memory, 0)


@pytest.mark.long
@pytest.mark.timeout(3600)
@_EVERY
def test_the_contract_holds_whoever_has_the_next_turn(
    memory: Memory, ways: Mapping[str, Way], delivery: str | None, ending: Ending, fetcher: str
) -> None:
    for moment in _moments(ending, delivery):
        for seed in range(1, _SEEDS):
            play(Cell(ways, delivery, ending, moment, fetcher), memory, seed)


@pytest.mark.parametrize(
    ("ways", "delivery"),
    [
        pytest.param(ways, delivery, id=f"{name}, done {done}")
        for done, delivery in DONE.items()
        for name, ways in (WAYS | ({} if delivery is None else YIELDING)).items()
    ],
)
def test_records_that_may_have_killed_a_worker_have_nothing_beside_them_until_they_are_delivered(
    memory: Memory, ways: Mapping[str, Way], delivery: str | None
) -> None:
    play(Cell(ways, delivery, Ending.DRAINED, Moment.IDLE, suspects=True), memory, 0)


CODES: dict[str, Refusal] = {
    "too large": Refusal(code=KafkaError.MSG_SIZE_TOO_LARGE),
    "no such topic": Refusal(code=KafkaError._UNKNOWN_TOPIC),
    "no right": Refusal(code=KafkaError.TOPIC_AUTHORIZATION_FAILED),
    "larger than the buffer": Refusal(code=NEVER_FITS),
}
"""What is told apart by what sends, before any handler's way of being called matters."""
EVERY_CODE = ("a record", "a batch", "tasks by key", "yielded")
"""Ways in which each run of the tests tries all of these."""
REFUSALS: dict[str, Refusal] = {
    **CODES,
    "refused, outbox full": Refusal(outbox_records=3),
    "refused, one hopeless behind it": Refusal(hopeless_behind=True),
    "refused, of one key": Refusal(one_key=True),
    "refused, of one key, outbox full": Refusal(one_key=True, outbox_records=3),
}


def _marks(way: str, refusal: str) -> Collection[pytest.MarkDecorator]:
    return (pytest.mark.long,) if refusal in CODES and way not in EVERY_CODE else ()


@pytest.mark.parametrize(
    ("ways", "delivery", "refusal"),
    [
        pytest.param(ways, delivery, refusal, id=f"{way}, done {done}, {name}", marks=_marks(way, name))
        for done, delivery in DONE.items()
        if delivery is not None
        for way, ways in (WAYS | YIELDING).items()
        for name, refusal in REFUSALS.items()
    ],
)
def test_of_refused_outputs_nothing_is_lost_and_nothing_stays_where_it_is(
    memory: Memory, ways: Mapping[str, Way], delivery: str, refusal: Refusal
) -> None:
    for on_failure in ("dead_letter", "halt"):
        each = replace(refusal, on_failure=on_failure)
        play(Cell(ways, delivery, Ending.REWOUND, Moment.ON_ITS_WAY, refusal=each), memory, 0)


FILLING: dict[str, Mapping[str, Way]] = {
    "a batch": {TOPIC: Way("batch", "batch", batch_max_ms=10_000)},
    "a batch async": {TOPIC: Way("batch_async", "batch", batch_max_ms=10_000)},
}
"""Where a batch waits for longer than it takes until nothing moves any more."""


@pytest.mark.parametrize(
    ("meets", "ways", "delivery"),
    [
        pytest.param(meets, ways, delivery, id=f"{meets}, {way}, done {done}")
        for meets in Meeting
        for way, ways in (FILLING if meets is Meeting.FILLING else WAYS | YIELDING).items()
        for done, delivery in DONE.items()
        if delivery is not None
    ],
)
def test_of_outputs_that_are_refused_nothing_is_lost_whatever_their_partition_waits_for(
    memory: Memory, meets: Meeting, ways: Mapping[str, Way], delivery: str
) -> None:
    for on_failure in ("dead_letter", "halt"):
        refusal = Refusal(on_failure=on_failure, meets=meets)
        play(Cell(ways, delivery, Ending.REWOUND, Moment.ON_ITS_WAY, refusal=refusal), memory, 0)


@pytest.mark.parametrize("letter", Letter)
@pytest.mark.parametrize("ending", [Ending.DRAINED, Ending.WORKER_STOPPED])
@pytest.mark.parametrize("ways", [pytest.param(ways, id=name) for name, ways in WAYS.items()])
def test_a_partition_that_ends_waits_for_a_letter_on_its_way_for_a_moment_and_no_longer(
    memory: Memory, ways: Mapping[str, Way], ending: Ending, letter: Letter
) -> None:
    play(Cell(ways, None, ending, Moment.ON_ITS_WAY, letter=letter), memory, 0)


@pytest.mark.parametrize("delivery", [delivery for delivery in DONE.values() if delivery is not None])
@pytest.mark.parametrize("way", [Way("record"), Way("record_async"), Way("yielding")], ids=lambda way: way.entry)
def test_what_a_record_has_left_is_sent_once_also_where_it_is_interrupted_before_it_counts_as_handled(
    memory: Memory, way: Way, delivery: str
) -> None:
    play(Cell({TOPIC: way}, delivery, Ending.REVOKED, Moment.LATER_CALL, just_returned=True), memory, 0)


REFUSED = {
    "a batch by key": ('mode = "batch"\nordering = "key"\n', 'not to be had with mode = "batch"'),
    "several batches": ('mode = "batch"\nconcurrency = 3\n', "a worker has one batch in hand at a time"),
    "one at a time by key": ('concurrency = 1\nordering = "key"\n', "one record at a time"),
}
"""Lines behind those of [handler], and why that is not to be had."""


@pytest.mark.parametrize(("lines", "why"), [pytest.param(*each, id=name) for name, each in REFUSED.items()])
def test_settings_refuse(tmp_path: Path, lines: str, why: str) -> None:
    assert why in "".join(problems(tmp_path, LEAST + lines))


@pytest.mark.parametrize(
    ("way", "why"),
    [
        pytest.param(Way("yielding"), "contains 'yield'", id="yielded, done on return"),
        pytest.param(Way("record", ordering="key"), "one call runs at a time", id="a plain function by key"),
    ],
)
def test_the_worker_refuses(memory: Memory, way: Way, why: str) -> None:
    with pytest.raises(Refused, match=why):
        play(Cell({TOPIC: way}, None, Ending.DRAINED, Moment.IDLE), memory, 0)
