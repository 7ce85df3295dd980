"""How far a run is."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from kunicorn.kafka.stored_positions import Lost
from kunicorn.pipeline.state import RunState, Tile
from kunicorn.pipeline.tasks.range_outcomes import Summary
from kunicorn.positions import Edges, OffsetRange, TopicPartition, cut, first_of_each

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
NEW = RunState((OffsetRange(*A0, 10, 110), OffsetRange(*A1, 0, 100)))


def summary(whole: OffsetRange, until: int | None = None, halted: str | None = None) -> Summary:
    return Summary(*whole, until or whole.stop, (until or whole.stop) - whole.start, 0, 0, halted, "f", 1.0)


def begun_of(state: RunState, size: int, pieces: int | None = None) -> RunState:
    return state.begin(cut(first_of_each(state.left, size), pieces))


def test_a_round_moves_every_partition_and_the_next_goes_on_behind_it() -> None:
    begun = begun_of(NEW, 20)
    assert list(begun.underway) == [OffsetRange(*A0, 10, 20), OffsetRange(*A1, 0, 10)]
    state = begun.end([summary(each) for each in begun.underway], 3.0)
    assert (state.done, state.rounds, state.counts.records, state.underway) == (20, 1, 20, ())
    assert state.left == [OffsetRange(*A0, 20, 110), OffsetRange(*A1, 10, 100)]
    assert not state.finished


def test_a_round_that_was_cut_off_is_begun_again_under_the_same_ranges() -> None:
    begun = replace(begun_of(NEW, 20), topics={"a": "id"})
    again = RunState.from_json(json.loads(json.dumps(begun.as_json())))
    assert again == begun
    assert again.waiting == [], "nothing else of these is begun beside them"


def test_what_filters_passed_by_adds_up_and_is_kept() -> None:
    begun = begun_of(NEW, 20)
    state = begun.end([replace(summary(each), filtered=3) for each in begun.underway], 1.0)
    assert (state.counts.records, state.counts.filtered) == (20, 6)
    assert RunState.from_json(json.loads(json.dumps(state.as_json()))) == state


def test_a_run_that_was_begun_before_there_were_tiles_goes_on() -> None:
    begun = begun_of(NEW, 20)
    told = {name: value for name, value in begun.as_json().items() if name not in ("tiles", "filtered")}
    assert RunState.from_json({**told, "last_busy": 1.0}) == begun


def test_a_partition_moves_by_itself_once_all_its_pieces_have_ended() -> None:
    begun = begun_of(NEW, 20, 4)
    assert len(begun.underway) == 4
    first, second, *others = begun.underway
    assert begun.whole([summary(first)]) == ([], [summary(first)])
    whole, rest = begun.whole([summary(each) for each in (first, second, others[0])])
    assert ([each.range for each in whole], [each.range for each in rest]) == ([first, second], [others[0]])
    state = begun.end(whole, 1.0)
    assert (state.positions, list(state.underway)) == ({A0: 20}, others)
    assert state.waiting == [OffsetRange(*A0, 20, 110)]


def test_what_is_handled_without_a_failure_is_a_row_for_all_of_it_until_a_file_has_it() -> None:
    state = NEW
    for _ in range(3):
        begun = begun_of(state, 20)
        plain = [replace(summary(each), file="") for each in begun.underway]
        state = begun.end(plain, 1.0)
    assert state.tiles == (Tile(*A0, 10, 40, 30), Tile(*A1, 0, 30, 30))
    assert RunState.from_json(json.loads(json.dumps(state.as_json()))) == state
    begun = begun_of(state.written(), 20)
    state = begun.end([summary(begun.underway[0]), replace(summary(begun.underway[1]), file="")], 1.0)
    assert state.tiles == (Tile(*A1, 30, 40, 10),), "the other one has a file of its own"


def test_a_partition_that_halts_stays_and_the_others_finish() -> None:
    begun = begun_of(NEW, 1_000)
    state = begun.end([summary(begun.underway[0], 15, "why"), summary(begun.underway[1])], 1.0)
    assert (state.left, state.finished, state.halted) == ([], False, {A0: "why"})
    assert state.released().left == [OffsetRange(*A0, 15, 110)]
    assert RunState.from_json(json.loads(json.dumps(state.as_json()))) == state


def test_pieces_behind_one_that_halts_do_not_count() -> None:
    begun = begun_of(NEW, 1_000)
    pieces = [OffsetRange(*A0, 10, 60), OffsetRange(*A0, 60, 110)]
    counting = begun.counting([summary(pieces[1]), summary(pieces[0], 30, "why")])
    assert [each.range for each in counting] == [pieces[0]]
    state = begun.end(counting, 1.0)
    assert state.counts.records == 20
    assert state.positions == {A0: 30}


WHOLE = {A0: Edges(0, 200), A1: Edges(0, 200)}


def test_a_run_whose_records_are_all_there_goes_on_as_it_is() -> None:
    begun = begun_of(NEW, 20)
    assert begun.in_logs(WHOLE, ()) == (begun, [], [])


def test_a_run_goes_on_behind_what_retention_has_deleted() -> None:
    state, lost, dropped = NEW.in_logs({**WHOLE, A0: Edges(60, 200)}, ())
    assert state.left == [OffsetRange(*A0, 60, 110), OffsetRange(*A1, 0, 100)]
    assert ([(each.tp, each.why, each.stored, each.edge) for each in lost], dropped) == (
        [(A0, Lost.DELETED, 10, 60)], [],
    )  # fmt: skip
    state, _, _ = NEW.in_logs({**WHOLE, A0: Edges(150, 200)}, ())
    assert state.left == [OffsetRange(*A1, 0, 100)], "the log begins behind the run"


def test_a_round_underway_keeps_its_ranges_where_retention_has_deleted_their_beginning() -> None:
    """Under another name its files would stand beside those of the try before."""
    begun = begun_of(NEW, 20)
    state, lost, dropped = begun.in_logs({**WHOLE, A0: Edges(15, 200)}, ())
    assert (state.underway, len(lost), dropped) == (begun.underway, 1, [])


@pytest.mark.parametrize(
    ("logs", "anew", "why"),
    [
        ({A0: Edges(0, 50), A1: Edges(0, 200)}, (), Lost.TRUNCATED),
        ({A1: Edges(0, 200)}, (), Lost.TOPIC_DELETED),
    ],
)
def test_a_run_leaves_out_what_was_truncated_or_deleted_and_begins_that_round_anew(
    logs: Mapping[TopicPartition, Edges], anew: Collection[str], why: Lost
) -> None:
    begun = begun_of(NEW, 20)
    state, lost, dropped = begun.in_logs(logs, anew)
    assert ([each.why for each in lost], dropped) == ([why], [begun.underway[0]])
    assert list(state.underway) == [begun.underway[1]]
    end = logs[A0].end if A0 in logs else 10
    assert [each for each in state.left if each.tp == A0] == ([OffsetRange(*A0, 10, end)] if end > 10 else [])


def test_a_run_keeps_the_leaders_epochs_in_which_its_ends_were_told() -> None:
    state = replace(NEW, epochs={A0: 7})
    assert RunState.from_json(json.loads(json.dumps(state.as_json()))) == state
    assert "epochs" not in NEW.as_json(), "where brokers do not tell them"


def test_a_run_takes_no_record_of_a_topic_that_was_created_anew() -> None:
    begun = begun_of(NEW, 20)
    state, lost, dropped = begun.in_logs(WHOLE, {"a"})
    assert (state.left, state.finished, len(lost), dropped) == ([], True, 2, list(begun.underway))
