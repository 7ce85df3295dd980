"""The list of scenarios is complete: each has tests of ours or a reason, and the page says so."""

from __future__ import annotations

from tests.contract.conformance.catalogue import SCENARIOS, SUITES
from tests.contract.conformance.page import PAGE, page
from tests.contract.conformance.proofs import proofs
from tests.contract.conformance.scenario import NEVER_EXCUSED

MOST_EXCUSED = 0.1


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.contract.conformance"


def test_no_scenario_is_listed_twice() -> None:
    assert len(SCENARIOS) == sum(map(len, SUITES.values()))


def test_every_mark_names_a_scenario_of_the_list() -> None:
    assert not proofs().keys() - SCENARIOS.keys()


def test_every_scenario_has_a_test_or_a_reason_and_never_both() -> None:
    shown = proofs()
    excused = {each.name for each in SCENARIOS.values() if each.cannot_apply is not None}
    assert not SCENARIOS.keys() - excused - shown.keys(), "these have neither"
    assert not excused & shown.keys(), "these have both"


def test_at_most_a_tenth_is_excused_and_nothing_that_could_lose_or_repeat_records() -> None:
    excused = [each for each in SCENARIOS.values() if each.cannot_apply is not None]
    assert len(excused) <= MOST_EXCUSED * len(SCENARIOS)
    assert not [each.name for each in excused if each.area in NEVER_EXCUSED]
