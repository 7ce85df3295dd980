"""Every pair of values comes up soon, and no fault is forgotten, whatever the seed."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from kunicorn.ipc.clock import NANOSECONDS
from kunicorn.settings.load import load
from tests.chaos.group import PROTOCOLS
from tests.soak.faults import FAULTS, FIRST, ORDERLY, QUIET, held
from tests.soak.peer_faults import SHARED, THEIRS
from tests.soak.peers import LINKS as PEERS_LINKS
from tests.soak.plan import (
    DELIVERIES,
    FAULT_SECONDS,
    LASTING,
    LASTING_SECONDS,
    QUIET_SECONDS,
    Leg,
    Shape,
    leg,
    legs,
    meanings,
    seconds,
    shapes,
    takes,
)
from tests.soak.run import BROKER_SETTINGS, cluster, left_of_hour, settings_of, version_of
from tests.soak.terms import terms
from tests.system.members import group_settings, merged, toml

SEEDS = (0, 27, 4711)
ENOUGH = 95
"""Legs, some twenty hours of them, after which every fault has met every protocol that it means something to ten
times."""


@pytest.mark.parametrize("seed", SEEDS)
def test_every_fault_meets_every_protocol_ten_times(seed: int) -> None:
    met = Counter(
        (each.shape.protocol, fault) for each in itertools.islice(legs(seed), ENOUGH) for fault in each.faults
    )
    seldom = {place: met[place] for place in meanings() if met[place] < 10}
    assert not seldom


@pytest.mark.parametrize("seed", SEEDS)
def test_every_two_values_that_go_together_meet_meanwhile(seed: int) -> None:
    wanted = {pair for shape in shapes() for pair in shape.pairs()}
    met = {pair for each in itertools.islice(legs(seed), ENOUGH) for pair in each.shape.pairs()}
    assert wanted - met == set()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leg_has_faults_that_mean_something_to_its_group_in_its_time(seed: int) -> None:
    for each in itertools.islice(legs(seed), 60):
        assert each.faults
        assert all(each.shape.meets(fault) for fault in each.faults)
        took = sum(seconds(fault, each.shape) + QUIET_SECONDS for fault in each.faults)
        assert took <= (LASTING_SECONDS if each.lasts else FAULT_SECONDS) or len(each.faults) == 1
        assert each.lasts or len(set(each.faults)) == len(each.faults)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_fifteenth_leg_lasts_an_hour_and_ends_no_process_of_a_member(seed: int) -> None:
    some = [each for each in itertools.islice(legs(seed), 60) if each.lasts]
    assert [each.number for each in some] == [0, 15, 30, 45]
    assert all(takes(each.number) > 3600 for each in some)
    assert not any(takes(each.number - 1) > 900 or takes(each.number + 1) > 900 for each in some)
    for each in some:
        assert set(each.faults) == {name for name in LASTING if each.shape.meets(name)}
    ending = {
        "poison",
        *ORDERLY,
        *(name for name in FAULTS if name.startswith(("kill-s", "kill-w", "upgrade", "reload"))),
    }
    assert not LASTING & ending


def test_each_tenth_leg_has_groups_of_other_clients_beside_ours_on_links_of_their_own(tmp_path: Path) -> None:
    some = list(itertools.islice(legs(27), 40))
    assert [each.number for each in some if each.has_peers] == [3, 13, 23, 33]
    reached = {each.has_peers: set(cluster(each, tmp_path).links) for each in some[3:5]}
    assert reached[True] - reached[False] == set(PEERS_LINKS.values())


def test_other_clients_meet_faults_that_there_are() -> None:
    assert set(THEIRS) <= {QUIET, *FAULTS}
    assert {name for name in FAULTS if name not in THEIRS} & SHARED == set()


def test_a_seed_has_the_same_legs_each_time_and_another_one_others() -> None:
    assert leg(5, 7) == leg(5, 7)
    assert [leg(5, number).shape for number in range(9)] != [leg(6, number).shape for number in range(9)]


def test_a_choice_of_faults_leaves_the_groups_as_they_are() -> None:
    assert leg(5, 7, ["kill-worker"]).shape == leg(5, 7).shape
    assert leg(5, 7, ["kill-worker"]).faults == ("kill-worker",)


def test_a_fault_means_something_to_every_protocol_but_for_brokers_that_have_only_one() -> None:
    every = set(itertools.product(PROTOCOLS, FAULTS))
    assert every - meanings() == {("consumer", "upgrade-brokers")}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leg_with_upgrades_begins_with_them_that_of_members_first(seed: int) -> None:
    for each in itertools.islice(legs(seed), 120):
        upgrades = [name for name in FIRST if name in each.faults]
        assert list(each.faults[: len(upgrades)]) == upgrades


@pytest.mark.parametrize(
    ("fault", "version", "checked"),
    [("kill-worker", "4.4.0", None), ("upgrade-brokers", "3.9.1", None), ("retention-by-time", "4.4.0", 1000)],
)
def test_a_legs_brokers_are_what_its_faults_need(fault: str, version: str, checked: int | None) -> None:
    leg = Leg(0, 0, shapes()[0], (fault,))
    assert version_of(leg) == version
    assert settings_of(leg).get("log.retention.check.interval.ms") == checked


def test_assignments_are_as_far_apart_as_kafka_ships() -> None:
    assert not [name for name in BROKER_SETTINGS if "assignment" in name]


def test_what_is_done_in_order_may_cause_nothing_to_be_handled_twice() -> None:
    assert {FAULTS[name].repeats.value for name in ORDERLY} == {"0"}


def test_what_is_done_in_order_is_held_to_the_same_whatever_becomes_of_outputs() -> None:
    excused = {(name, way) for name in FAULTS for way in DELIVERIES if held(name, way) != FAULTS[name]}
    assert excused == {(name, "transactions") for name in FAULTS.keys() - ORDERLY.keys()}


@pytest.mark.parametrize("shape", shapes(), ids=str)
def test_the_service_takes_the_settings_of_every_group(shape: Shape, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.getbasetemp()
    set_to = terms(shape, "topic", directory, {})
    path = directory / "settings.toml"
    path.write_text(toml(merged(group_settings("127.0.0.1:1", ["topic"], "group"), set_to.settings)))
    load(path, {})


def test_a_leg_that_lasts_an_hour_does_so_on_a_quick_machine_too() -> None:
    lasting, usual = leg(27, 15), leg(27, 16)
    assert lasting.lasts
    assert [left_of_hour(lasting, minutes * 60 * NANOSECONDS) for minutes in (36, 59, 70)] == [1440, 60, 0]
    assert left_of_hour(usual, 0) == 0
