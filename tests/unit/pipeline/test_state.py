"""How far a run is."""

from __future__ import annotations

import json
from dataclasses import replace

from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.task import Summary
from kunicorn.positions import OffsetRange, TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
NEW = RunState((OffsetRange(*A0, 10, 110), OffsetRange(*A1, 0, 100)))


def summary(whole: OffsetRange, until: int | None = None, halted: str | None = None) -> Summary:
    return Summary(*whole, until or whole.stop, (until or whole.stop) - whole.start, 0, 0, halted, "f", 1.0)


def test_a_round_moves_every_partition_and_the_next_goes_on_behind_it() -> None:
    begun = NEW.begin(20)
    assert list(begun.underway) == [OffsetRange(*A0, 10, 20), OffsetRange(*A1, 0, 10)]
    state = begun.end([summary(each) for each in begun.underway], 3.0)
    assert (state.done, state.rounds, state.counts.records, state.underway) == (20, 1, 20, ())
    assert state.left == [OffsetRange(*A0, 20, 110), OffsetRange(*A1, 10, 100)]
    assert not state.finished


def test_a_round_that_was_cut_off_is_begun_again_under_the_same_ranges() -> None:
    begun = replace(NEW.begin(20), topics={"a": "id"})
    again = RunState.from_json(json.loads(json.dumps(begun.as_json())))
    assert again == begun
    assert again.begin(1_000).underway == begun.underway


def test_a_round_that_was_cut_off_is_begun_again_in_the_same_tasks_whatever_the_setting_is_then() -> None:
    begun = NEW.begin(20, 4)
    assert len(begun.underway) == 4
    assert RunState.from_json(json.loads(json.dumps(begun.as_json()))).begin(20, 6).underway == begun.underway


def test_a_partition_that_halts_stays_and_the_others_finish() -> None:
    begun = NEW.begin(1_000)
    state = begun.end([summary(begun.underway[0], 15, "why"), summary(begun.underway[1])], 1.0)
    assert (state.left, state.finished, state.halted) == ([], False, {A0: "why"})
    assert state.released().left == [OffsetRange(*A0, 15, 110)]
    assert RunState.from_json(json.loads(json.dumps(state.as_json()))) == state


def test_pieces_behind_one_that_halts_do_not_count() -> None:
    begun = NEW.begin(1_000)
    pieces = [OffsetRange(*A0, 10, 60), OffsetRange(*A0, 60, 110)]
    state = begun.end([summary(pieces[1]), summary(pieces[0], 30, "why")], 1.0)
    assert state.positions == {A0: 30}
