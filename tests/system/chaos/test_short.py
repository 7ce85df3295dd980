"""Eight minutes of `make chaos`: the schedules that failed once, then some faults of a fresh seed in each protocol."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.crowds import CROWDS, ONE
from tests.chaos.faults import FAULTS, Kind
from tests.chaos.group import BROKER_SETTINGS, FETCHERS, LINKS, PROTOCOLS
from tests.chaos.run import run
from tests.chaos.schedule import Schedule, crowded, remembered, schedule
from tests.kafka import ProxiedCluster

pytestmark = pytest.mark.long

FAULTS_EACH = 3
ALWAYS = ("poison", "rolling-restart")
"""They take seconds, and each meets what no other fault does."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[ProxiedCluster]:
    with ProxiedCluster(LINKS, overrides=BROKER_SETTINGS) as cluster:
        yield cluster


def hold(kafka: ProxiedCluster, what: Schedule, directory: Path) -> None:
    """Run it; a promise that does not hold fails with the seed that repeats it."""
    broken = run(kafka, what, directory, print).broken
    assert not broken, f"make chaos SEED={what.seed} FETCHER={what.fetcher}, faults {what.faults}:\n" + "\n".join(
        broken
    )


@pytest.mark.parametrize("fetcher", FETCHERS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.scenario("TestGroupETL")
def test_every_promise_holds_in_a_fresh_schedule(
    kafka: ProxiedCluster, protocol: str, fetcher: str, tmp_path: Path
) -> None:
    number = list(PROTOCOLS).index(protocol)
    seed = 2 * (len(PROTOCOLS) * random.randrange(10_000) + number)
    common = [name for name in schedule(seed).faults if FAULTS[name].kind is Kind.ANY and name not in ALWAYS]
    hold(kafka, schedule(seed, [*common[:FAULTS_EACH], *ALWAYS], fetcher=fetcher), tmp_path)


@pytest.mark.parametrize("crowd", [crowd for crowd in CROWDS if crowd != ONE])
@pytest.mark.parametrize("fetcher", FETCHERS)
def test_every_promise_holds_with_several_records_in_hand(
    kafka: ProxiedCluster, crowd: str, fetcher: str, tmp_path: Path
) -> None:
    hold(kafka, crowded(random.randrange(10_000), crowd, fetcher), tmp_path)


@pytest.mark.parametrize("what", remembered(), ids=str)
def test_a_schedule_that_failed_once_holds(kafka: ProxiedCluster, what: Schedule, tmp_path: Path) -> None:
    hold(kafka, what, tmp_path)
