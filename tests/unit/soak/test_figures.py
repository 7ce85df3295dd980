"""Figures of legs: kept as lines, counted on one code, made into docs/soak.md."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

import pytest

from tests.chaos.group import FETCHERS
from tests.checkout import ROOT, is_of
from tests.markdown import cells
from tests.soak import __main__ as soak
from tests.soak import figures
from tests.soak.faults import FAULTS, ORDERLY, QUIET
from tests.soak.figures import (
    NOT_LIVE,
    OF_OWN_FETCHER,
    Faulted,
    Figures,
    code_under_test,
    counted,
    keep,
    kept,
    next_legs,
)
from tests.soak.page import GOALS, PAGE, page
from tests.soak.plan import leg
from tests.soak.resources import QUANTITIES, ROLES, Line, Points, Sums


def of_leg(number: int = 0, **more: object) -> Figures:
    """A leg of an hour with one fault."""
    faults = (Faulted("kill-worker", "the record in hand", 1, 0, [20, 40, 3_000]), Faulted(QUIET, "0", 0, 0, [7]))
    sums = {role: {name: Sums(100, 2.0, 1.0 + number, 50.0) for name in QUANTITIES} for role in ROLES}
    shape = asdict(leg(27, 0).shape)
    begun = Figures(27, number, "2026-11-24", "c0ffee", "feed", shape, 3600, 5000, records=1_000_000, restarts=3)
    return replace(begun, **{"faults": faults, "resources": sums, **more})  # type: ignore[arg-type]


def row(text: str, begins: str) -> list[str]:
    """Cells of the row."""
    (found,) = [line for line in text.splitlines() if line.startswith(f"| {begins} |")]
    return cells(found)


def test_a_leg_is_read_as_it_was_kept(tmp_path: Path) -> None:
    file = tmp_path / "soak.jsonl"
    for number in range(2):
        keep(of_leg(number, broken=["lost"]), file)
    assert len(file.read_text().splitlines()) == 2
    assert [each.line() for each in kept(file)] == [of_leg(number, broken=["lost"]).line() for number in range(2)]
    assert kept(file)[1].complaints == ["lost"]


def test_a_run_goes_on_with_the_legs_of_its_seed_and_code_that_are_not_there() -> None:
    code = dict.fromkeys(FETCHERS, "feed")
    legs = [of_leg(0), of_leg(2), of_leg(7, code="older"), of_leg(9, seed=28)]
    assert list(islice(next_legs(27, code, legs), 3)) == [1, 3, 4]
    assert next(next_legs(27, dict.fromkeys(FETCHERS, "newer"), legs)) == 0, "a mend voids what was run before it"


def test_a_mend_of_one_fetcher_voids_no_leg_of_the_other() -> None:
    numbers = range(20)
    had = [of_leg(number, shape=asdict(leg(27, number).shape)) for number in numbers]
    own = [each.leg for each in had if each.of.fetcher == "own"]
    codes = {"librdkafka": "feed", "own": "newer"}
    assert list(islice(next_legs(27, codes, had), len(own) + 1)) == [*own, len(had)]
    again = replace(had[own[0]], code="newer", codes=codes)
    assert counted([*had, again]) == [*(each for each in had if each.leg not in own), again]
    assert counted([*had, again, of_leg(code="newest")]) == [of_leg(code="newest")], "told of no fetcher, it is of both"


def test_legs_that_end_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "soak.jsonl"
    long = [of_leg(number, broken=["x" * 100_000]) for number in range(8)]
    with ThreadPoolExecutor(8) as several:
        list(several.map(lambda each: keep(each, file), long))
    assert sorted(each.leg for each in kept(file)) == list(range(8))


def test_the_page_adds_up_the_legs_of_the_latest_code_and_shows_the_others_apart() -> None:
    text = page([of_leg(0, code="older", records=77), of_leg(1), of_leg(2, twice_in_order=4)])
    assert row(text, "records")[1] == "2,000,000"
    assert row(text, "members restarted, joined or left in order")[1] == "6"
    assert row(text, "handled again because of that")[1] == "4"
    assert row(text, "`older`")[3] == "77"


def test_the_page_shows_each_faults_pauses_and_what_a_leg_has_not_had() -> None:
    text = page([of_leg(0), of_leg(1)])
    assert row(text, FAULTS["kill-worker"].title)[-3:] == ["0.04", "3.00", "3.00"]
    assert row(text, "none")[-1] == "0.01"
    assert row(text, FAULTS["freeze-broker"].title)[-1] == "–"
    assert FAULTS["freeze-broker"].title in text.partition("## Not there yet")[2]


def test_the_page_has_pauses_of_other_clients_beside_ours_of_the_same_legs() -> None:
    theirs = {"Java 4": [Faulted("kill-worker", "–", 7, 0, [80, 400, 6_000])]}
    # A leg without them has pauses that are not compared.
    alone = of_leg(0, faults=[Faulted("kill-worker", "the record in hand", 1, 0, [90_000])])
    text = page([alone, of_leg(3, peers=theirs)]).partition("## Beside other clients")[2]
    assert row(text, FAULTS["kill-worker"].title)[1:] == ["0.04", "3.00", "0.40 (0.10)", "6.00 (0.50)", "1", "7"]
    assert f"| {FAULTS['freeze-broker'].title} |" not in text.partition("## Groups")[0]


def test_the_page_tells_of_another_clients_group_that_did_not_become_whole() -> None:
    stuck = Faulted("cut", "–", 0, 0, [], ["waited 300 s in vain"])
    text = page([of_leg(3, peers={"Java 4": [stuck]})])
    assert row(text, "Java 4")[1:] == [FAULTS["cut"].title, "waited 300 s in vain"]
    assert row(text, "legs in which a promise did not hold")[1] == "0 of 1"


def test_the_page_names_a_leg_whose_promise_did_not_hold() -> None:
    broken = Faulted("kill-worker", "the record in hand", 9, 0, [1], ["kill-worker: 9 records | were handled again"])
    text = page([of_leg(5, faults=(broken,))])
    assert row(text, "faults beyond their bound")[1] == "1 of 1"
    assert "9 records \\| were handled again" in text.partition("## Legs that failed")[2]


def test_what_members_take_is_told_of_the_legs_that_last() -> None:
    brief = of_leg(1, resources={role: {name: Sums(9, 2.0, 900.0, 0.0) for name in QUANTITIES} for role in ROLES})
    # Slopes of 1 / 2 and 16 / 2 an hour.
    text = page([of_leg(0), brief, of_leg(15)])
    assert row(text, "worker: descriptors")[1:] == ["50.0", "+4.25", "±47.66", "200"]
    assert row(page([of_leg(0), brief]), "worker: descriptors")[1:] == ["–", "–", "–", "–"]


def test_the_page_is_what_its_figures_say() -> None:
    assert PAGE.read_text() == page(kept()), "run `make docs`"


def test_figures_that_are_kept_can_be_read_and_name_faults_that_there_are() -> None:
    for each in kept():
        assert each.of.exists
        assert {fault.fault for fault in each.faults} <= {QUIET, *FAULTS}


def test_the_goals_are_those_of_the_issue() -> None:
    assert dict(GOALS)["records"] == "50,000,000"
    assert set(ORDERLY) <= set(FAULTS)


def test_a_change_of_a_members_sources_voids_and_one_of_jobs_does_not(tmp_path: Path) -> None:
    def commit() -> None:
        for command in (["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
            subprocess.run(["git", *command], cwd=tmp_path, check=True)

    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    of_no_member = [
        "pipeline/job.py",
        "testing/harness.py",
        "commands/check/trial.py",
        "handler/decode/json_columns.py",
    ]
    for name in ("worker/loop.py", "fetch/queue.py", *of_no_member):
        path = tmp_path / "service/kunicorn" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    (tmp_path / "service/columns").mkdir()
    commit()
    before = code_under_test(tmp_path)
    for name in of_no_member:
        (tmp_path / "service/kunicorn" / name).write_text("2")
    (tmp_path / "README.md").write_text("2")
    commit()
    assert code_under_test(tmp_path) == before
    (tmp_path / "service/kunicorn/fetch/queue.py").write_text("2")
    with pytest.raises(SystemExit, match="commit first"):
        code_under_test(tmp_path)
    commit()
    fetched = code_under_test(tmp_path)
    assert [fetched[each] == before[each] for each in ("librdkafka", "own")] == [True, False]
    (tmp_path / "service/kunicorn/worker/loop.py").write_text("2")
    commit()
    assert not set(code_under_test(tmp_path).values()) & {*fetched.values(), *before.values()}


@pytest.mark.parametrize("none_of_it", [NOT_LIVE, (*NOT_LIVE, *OF_OWN_FETCHER)], ids=FETCHERS[::-1])
def test_nothing_of_a_member_loads_what_is_none_of_its_parts(none_of_it: tuple[str, ...]) -> None:
    # Those named __main__ run where they are loaded. Declarations of commands take defaults of options from jobs.
    beside = {"__main__", "cli", "cli_group", "cli_options", "cli_pipeline"}
    files = [path.relative_to(ROOT) for path in (ROOT / "service/kunicorn").rglob("*.py") if path.stem not in beside]
    every = [
        ".".join(file.with_suffix("").parts[1:]).removesuffix(".__init__")
        for file in files
        if not is_of(str(file), none_of_it)
    ]
    loads = "import importlib, sys; [*map(importlib.import_module, sys.argv[1:])]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", loads, *every], capture_output=True, text=True, check=True)
    loaded = [f"service/{name.replace('.', '/')}" for name in done.stdout.split()]
    assert len(every) > 200
    assert [each for each in loaded if is_of(each, none_of_it) or is_of(f"{each}.py", none_of_it)] == []


def test_a_line_goes_through_points_of_processes_that_begin_at_different_heights() -> None:
    sums = []
    for start in (100.0, 900.0):
        points = Points()
        for pid, height in ((1, start), (2, start / 2)):
            for minute in range(10):
                points.add(pid, minute / 60, height + 3 * minute / 60)
        sums.append(points.sums())
    line = Line.of(sums)
    assert line is not None
    assert line.slope == pytest.approx(3)
    assert line.error == pytest.approx(0, abs=1e-9)
    assert line.samples == 40


def test_legs_that_differ_give_the_slope_its_error() -> None:
    line = Line.of([Sums(10, 1.0, 2.0, 5.0), Sums(10, 1.0, -2.0, 5.0)])
    assert line is not None
    assert (line.slope, line.error) == pytest.approx((0.0, 2.0))
    assert Line.of([Sums(10, 1.0, 2.0, 5.0)]) is None, "one leg says nothing of an error"


def test_sums_survive_json() -> None:
    assert Sums(*json.loads(json.dumps(Sums(1, 2.0, 3.0, 4.0)))) == Sums(1, 2.0, 3.0, 4.0)
    assert figures.FILE.suffix == ".jsonl"


def test_a_leg_that_a_signal_ends_is_told_and_is_none_that_went_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Segmentation fault of a client library, out of memory."""
    dies = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
    monkeypatch.setattr(soak, "_command", lambda _number, _options: dies)
    assert soak._many(iter(range(9)), Namespace(hours=0.0, side_by_side=1)) == 1
    assert "was ended by SIGKILL" in capsys.readouterr().out
