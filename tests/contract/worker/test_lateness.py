"""Whoever is due is attended to within 0.2 s or one record, whichever is longer, whatever the backlog: in every way of
calling handlers, and whoever fetches. One call of a batch handler counts as one record. See `lateness`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count

import pytest

from tests.contract.stories import COLLECTED_EVERY, collected_between
from tests.contract.worker.lateness import Case, Due, waits
from tests.contract.worker.plan import Way
from tests.contract.worker.stepping import NANOSECONDS
from tests.contract.worker.supervised import Memory
from tests.contract.worker.ways import WAYS, YIELDING, fetchers

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def collect() -> Iterator[Callable[[], object]]:
    with collected_between() as collect:
        told = count(1)
        yield lambda: next(told) % COLLECTED_EVERY or collect()


@pytest.fixture(autouse=True)
def _collected(collect: Callable[[], object]) -> Iterator[None]:
    yield
    collect()


@pytest.mark.parametrize("due", Due)
@pytest.mark.parametrize("record_ns", [NANOSECONDS // 100, NANOSECONDS], ids=["10 ms", "1 s"])
@pytest.mark.parametrize(
    ("ways", "subject", "delivery", "fetcher"),
    [
        pytest.param(
            ways,
            subject,
            "at_least_once" if name in YIELDING else None,
            fetcher,
            id=f"{name}, {subject}, {fetcher}",
            marks=marks,
        )
        for name, ways in (WAYS | YIELDING).items()
        for subject in ways
        for fetcher, marks in fetchers(name).items()
    ],
    indirect=["fetcher"],
)
def test_nobody_waits_for_a_backlog(
    memory: Memory,
    ways: Mapping[str, Way],
    subject: str,
    delivery: str | None,
    record_ns: int,
    due: Due,
    fetcher: str,
) -> None:
    case = Case(ways, subject, due, record_ns, fetcher, delivery)
    seconds = [each / NANOSECONDS for each in waits(case, memory, 0)]
    assert max(seconds) <= case.bound_ns / NANOSECONDS, seconds


@pytest.mark.parametrize("due", Due)
def test_nobody_waits_for_a_backlog_that_memory_has_room_for(memory: Memory, due: Due) -> None:
    for ways in WAYS.values():
        case = Case(ways, next(iter(ways)), due, NANOSECONDS // 100, fits=True)
        seconds = [each / NANOSECONDS for each in waits(case, memory, 0)]
        assert max(seconds) <= case.bound_ns / NANOSECONDS, (ways, seconds)
