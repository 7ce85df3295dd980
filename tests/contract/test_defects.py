"""The defects that stories are to find can still be put back, and stories find them.

What a story finds then is a promise that is broken. An exception of the patched code itself would be found as well, by
the first story that comes there, and say nothing about what stories find.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from difflib import unified_diff
from pathlib import Path

import pytest

from tests.contract.stories import Found
from tests.contract.supervisor import stories as supervisor
from tests.contract.worker import stories as worker
from tests.contract.worker.defects import recorded as of_worker
from tests.contract.worker.defects.put_back import first_find, put_back

_HERE = Path(__file__).parent
_SERVICE = _HERE.parents[1] / "service"
_PATCHES = sorted(_HERE.glob("*/defects/*.patch"))
_TOLD: dict[str, Callable[[int, Iterable[int]], Found | None]] = {"worker": worker.told, "supervisor": supervisor.told}
_TIMES, _LEAST = 8, 400
"""So many times as many are told as seeds take in the middle: after a change of the code each story is another one, and
the one that was measured may find nothing any more."""


def _recorded(patch: Path) -> of_worker.Measured:
    recorded = of_worker.read(patch.parent / "recorded.json")
    assert recorded is not None
    return recorded


_MEASURED = [patch for patch in _PATCHES if patch.stem in _recorded(patch).found]


@pytest.mark.once
@pytest.mark.parametrize("patch", _MEASURED, ids=lambda patch: patch.stem)
def test_a_defect_that_is_put_back_is_found_by_a_story_that_holds_without_it(patch: Path) -> None:
    of = patch.parents[1].name
    which, number, median = _recorded(patch).soonest(patch.stem)
    seed = of_worker.FIRST_SEEDS.get(patch.stem, 1) + which
    most = max(_TIMES * median, _LEAST)
    with put_back(patch) as service:
        found = first_find(service, f"tests.contract.{of}.stories", seed, most, first=number - 1)
    again = f"python -m tests.contract.{of}.defects --only {patch.stem} --write"
    assert found is not None, f"seed {seed} does not find it any more: look whether another one does, {again}"
    assert not found.accident, f"the patch breaks the code, and puts back no defect: make it anew\n{found.accident}"
    assert _TOLD[of](seed, [found.number]) is None, f"story {found.number} of seed {seed} fails without the defect, too"
    if found.number != number - 1:
        stale = f"many stories are told where a measured one would do: python -m tests.contract.{of}.defects --write"
        warnings.warn(stale, stacklevel=1)


@pytest.mark.parametrize("patch", [each for each in _PATCHES if each not in _MEASURED], ids=lambda patch: patch.stem)
def test_a_defect_that_was_not_measured_yet_can_be_put_back(patch: Path) -> None:
    with put_back(patch) as service:
        assert service.is_dir()


def test_a_patch_that_breaks_the_code_is_told_from_one_that_puts_back_a_defect(tmp_path: Path) -> None:
    name = "service/kunicorn/worker/partitions.py"
    before = (_SERVICE.parent / name).read_text()
    after = before.replace("self._deliveries.refused(refusals)", "self._deliveries.refuse(refusals)")
    patch = tmp_path / "broken.patch"
    lines = unified_diff(before.splitlines(True), after.splitlines(True), f"a/{name}", f"b/{name}")
    patch.write_text("".join(lines))
    with put_back(patch) as service:
        found = first_find(service, "tests.contract.worker.stories", 1, 200)
    assert found is not None
    assert "AttributeError: 'Deliveries' object has no attribute 'refuse'" in found.accident
