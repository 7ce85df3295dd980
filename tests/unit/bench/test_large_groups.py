"""`make bench-groups` with small groups: what it counts, and that its section of docs/benchmarks.md is current."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bench.groups import page
from bench.groups.__main__ import main
from bench.groups.cases import ASSIGNORS, CASES, RULES, Group, Row, place, run
from bench.groups.wire import VERSIONS, Wire, group_record_bytes
from bench.pages import PAGE
from kunicorn.group import events as ev
from kunicorn.group.protocol import Plan
from kunicorn.kafka.versions import Api
from tests.fakes.classic_group import ClassicGroup
from tests.fakes.host import Host

SIZE = (10, 50)
EVERYBODY = frozenset(place(number) for number in range(12))


class Instant(Wire):
    """Plans are there at once, so that two runs are alike."""

    def plan(self, host: Host, request: ev.MakePlan) -> tuple[Plan, float]:
        return super().plan(host, request)[0], 0.0


def measured(rules: str, assignor: str, on_the_wire: Collection[str]) -> list[Row]:
    group = Group(rules, assignor, SIZE, static=True, wire=Instant(on_the_wire))
    steps = (
        ("join", group.join),
        ("ten", lambda: group.add(2)),
        ("grown", group.grow),
        ("rolling-static", group.roll),
    )
    return [group.measure(case, what) for case, what in steps]


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_what_is_counted_by_shape_is_as_long_as_what_is_encoded(rules: str, assignor: str) -> None:
    some = measured(rules, assignor, {place(0), place(7)})
    every = measured(rules, assignor, EVERYBODY)
    for one, other in zip(some, every, strict=True):
        assert one.frames < other.frames
        alike = {"frames": 0, "leader_cpu": 0.0, "plan_cpu": 0.0, "follower_cpu": 0.0}
        assert replace(one, **alike) == replace(other, **alike)  # type: ignore[arg-type]


@pytest.mark.parametrize("rules", RULES)
def test_each_case_settles_and_tells_what_it_took(rules: str) -> None:
    for assignor in ASSIGNORS:
        rows = {row.case: row for row in run(rules, assignor, ("join", "rolling", "rolling-static"), SIZE)}
        assert rows["join"].moved < SIZE[1]
        assert rows["rolling-static"].moved == 0, "static members keep what they had"
        assert rows["rolling-static"].generations == 0
        assert rows["rolling"].generations >= SIZE[0]
        for row in rows.values():
            assert row.sent > 0
            assert row.received > 0
            assert row.seconds > 0
            assert row.follower_cpu > 0
            assert (row.leader_cpu > 0) == (row.group_record > 0) == (assignor != "consumer")


def test_a_first_join_of_everybody_takes_two_joins_and_one_sync_of_each() -> None:
    (row,) = run("kunicorn", "cooperative-sticky", ["join"], SIZE)
    assert (row.messages["JoinGroup"], row.messages["SyncGroup"]) == (20, 10)
    assert row.generations == 1


def test_one_more_cooperative_member_costs_two_generations_and_moves_only_its_share() -> None:
    for rules in RULES:
        (row,) = run(rules, "cooperative-sticky", ["one"], SIZE)
        assert (row.generations, row.moved) == (2, 50 // 11)


def test_the_groups_record_has_the_length_of_the_message_that_kafka_writes() -> None:
    """Counted by hand: a group of one member with two partitions and nothing that it owned before."""
    group = Group("kunicorn", "range", (12, 60))
    group.measure("join", group.join)
    classic = group.world.group
    assert isinstance(classic, ClassicGroup)
    one, more = sorted(classic.seats.values(), key=lambda seat: seat.member_id)[:2]
    both = replace(classic, seats={one.member_id: one, more.member_id: more}, generation=1)
    alone = replace(classic, seats={one.member_id: one}, generation=1)
    # member id, no instance, client, host, two times, subscription (version 3), assignment (version 0)
    subscription = 2 + 4 + 2 + len("orders") + 4 + 4 + 4 + 2
    assignment = 2 + 4 + 2 + len("orders") + 4 + 5 * 4 + 4
    member = 2 + len(one.member_id) + 2 + 2 + 8 + 2 + 15 + 4 + 4 + 4 + subscription + 4 + assignment
    assert group_record_bytes(both) - group_record_bytes(alone) == member


def test_the_wire_is_spoken_in_the_newest_versions() -> None:
    assert VERSIONS[Api.JOIN_GROUP] == 9
    assert VERSIONS[Api.OFFSET_COMMIT] == 10


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_section_of_the_page_is_made_of_the_figures() -> None:
    assert f"## {page.TITLE}\n\n{page.section(page.read())}\n" in PAGE.read_text(), "run python -m bench.groups --page"


def test_a_figure_replaces_the_one_of_its_kind_and_the_page_follows(tmp_path: Path) -> None:
    figures, target = tmp_path / "figures.json", tmp_path / "page.md"
    (row,) = run("java", "range", ["join"], SIZE)
    page.keep(row, figures, target)
    page.keep(replace(row, assignor="consumer"), figures, target)
    page.keep(replace(row, moved=4242), figures, target)
    assert [(each.assignor, each.moved) for each in page.read(figures)] == [("range", 4242), ("consumer", row.moved)]
    assert "4,242" in target.read_text()


def test_cases_that_were_not_run_are_named_as_such() -> None:
    lines = page.section([]).splitlines()
    assert sum("not run" in line for line in lines) == 2 * len(CASES) * len(ASSIGNORS) * len(RULES)


def test_figures_of_other_sizes_are_not_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["bench.groups", "--size", "12x60", "--write"])
    with pytest.raises(SystemExit):
        main()
    assert "leave --size out" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["5x10", "twelve", "12x0", "12"])
def test_a_size_that_is_none_is_refused_by_name(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["bench.groups", "--size", text])
    with pytest.raises(SystemExit):
        main()
    assert f"{text!r} is not MEMBERSxPARTITIONS" in capsys.readouterr().err


def test_a_case_alone_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--size", "12x60", "--cases", "join", "--rules", "java", "--assignors", "range"]
    monkeypatch.setattr("sys.argv", ["bench.groups", *arguments])
    assert main() == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line).keys() == asdict(next(run("java", "range", ["join"], SIZE))).keys()
