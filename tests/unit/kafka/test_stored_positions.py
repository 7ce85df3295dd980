"""The resolver of stored positions, rule by rule."""

from __future__ import annotations

import pytest

from kunicorn.group.protocol import Committed
from kunicorn.ipc import bitmap
from kunicorn.kafka.stored_positions import Lost, began_with, edge_of_new, resolve, resolve_all, up_to_epochs
from kunicorn.positions import EARLIEST, LATEST, NO_OFFSET, Edges, OffsetRange, Position, TopicPartition, still_there

TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
LOG = Edges(100, 500)
EVERY = ("earliest", "latest", "none")


@pytest.mark.parametrize(
    ("stored", "epoch_end", "anew", "starts", "why"),
    [
        # What the log holds is where it goes on, whatever the policy; at its end there is just nothing to read yet.
        (100, None, False, (100, 100, 100), None),
        (250, None, False, (250, 250, 250), None),
        (500, None, False, (500, 500, 500), None),
        (250, 500, False, (250, 250, 250), None),
        # Retention: by the policy.
        (99, None, False, (100, 500, None), Lost.DELETED),
        (0, 20, False, (100, 500, None), Lost.DELETED),
        # Truncation: where its epoch ends, else at the end; never by `latest`.
        (501, None, False, (500, 500, None), Lost.TRUNCATED),
        (900, 320, False, (320, 320, None), Lost.TRUNCATED),
        (400, 320, False, (320, 320, None), Lost.TRUNCATED),
        (400, 20, False, (100, 100, None), Lost.TRUNCATED),
        (900, 700, False, (500, 500, None), Lost.TRUNCATED),
        # Another topic's offset: from the beginning of this one, whatever the policy.
        (250, None, True, (100, 100, 100), Lost.CREATED_ANEW),
        (900, 320, True, (100, 100, 100), Lost.CREATED_ANEW),
    ],
)
def test_a_stored_position_goes_on_by_the_facts_and_the_policy(
    stored: int, epoch_end: int | None, anew: bool, starts: tuple[int | None, ...], why: Lost | None
) -> None:
    for policy, start in zip(EVERY, starts, strict=True):
        found = resolve(TP, Position(stored), LOG, policy, epoch_end=epoch_end, anew=anew)
        assert (found.offset, found.loss and found.loss.why) == (start, why), policy


@pytest.mark.parametrize(
    ("stored", "epoch_end", "anew", "left"),
    [
        (250, None, False, {260, 270}),
        (250, 271, False, {260, 270}),
        (250, 270, False, {260}),
        (250, 250, False, set()),
        (250, 200, False, set()),
        (250, None, True, set()),
        (485, None, False, {495}),  # The log ends at 500.
        (85, None, False, {105}),  # It begins at 100.
    ],
)
def test_what_is_done_ahead_counts_where_the_log_still_has_those_records(
    stored: int, epoch_end: int | None, anew: bool, left: set[int]
) -> None:
    told = bitmap.written(stored, {stored + 10, stored + 20})
    found = resolve(TP, Position(stored, 3, told), LOG, epoch_end=epoch_end, anew=anew)
    assert found.offset is not None
    assert bitmap.read(found.offset, found.done) == left


@pytest.mark.parametrize(
    ("policy", "began_with", "edges"),
    [
        ("earliest", None, (EARLIEST, EARLIEST)),
        ("earliest", 2, (EARLIEST, EARLIEST)),
        ("latest", 2, (LATEST, LATEST)),
        # The second one was added since; and where nobody knows, nothing is skipped.
        ("latest", 1, (LATEST, EARLIEST)),
        ("latest", 0, (EARLIEST, EARLIEST)),
        ("latest", None, (EARLIEST, EARLIEST)),
        ("none", 2, (None, None)),
    ],
)
def test_a_partition_that_nothing_is_stored_for_begins_by_the_policy_unless_it_was_added_since(
    policy: str, began_with: int | None, edges: tuple[int | None, ...]
) -> None:
    assert tuple(edge_of_new(tp, policy, began_with) for tp in (TP, OTHER)) == edges


def test_how_many_partitions_a_group_began_with_is_in_its_commits_or_below_the_highest_of_them() -> None:
    nothing, others, ours = (
        Committed(0),
        Committed(0, 7, metadata="other"),
        Committed(0, 7, -1, "kunicorn:partitions:1"),
    )
    assert began_with("orders", [TP, OTHER], {TP: nothing, OTHER: nothing}) == 2, "it begins now"
    assert began_with("orders", [TP, OTHER], {TP: others, OTHER: nothing}) == 1
    assert began_with("orders", [TP, OTHER], {TP: ours, OTHER: others}) == 1
    assert began_with("orders", [TP, OTHER], {TP: others}) is None, "the other one may be committed"
    assert began_with("orders", [TP, OTHER], {TP: others, OTHER: Committed(88)}) is None


def test_a_time_that_all_records_are_older_than_is_the_end() -> None:
    assert [LOG.placed(at) for at in (EARLIEST, LATEST, NO_OFFSET, 7)] == [100, 500, 500, 7]


def test_all_at_once_goes_on_behind_what_is_lost_and_says_what_that_is() -> None:
    starts, lost = resolve_all({TP: 40, OTHER: 300}, {TP: LOG, OTHER: LOG})
    assert starts == {TP: 100, OTHER: 300}
    assert [str(each) for each in lost] == ["orders-0 from 40 to 100 is deleted already"]
    starts, lost = resolve_all({TP: 40, OTHER: 300}, {TP: LOG, OTHER: LOG}, {"orders"})
    assert starts == {TP: 100, OTHER: 100}
    assert len(lost) == 2


@pytest.mark.parametrize(
    ("asked", "there", "gone"),
    [
        ((100, 500), (100, 500), None),
        ((40, 500), (100, 500), (40, 100)),
        ((40, 60), None, (40, 60)),
        ((300, 300), None, None),
        ((300, 200), None, None),
    ],
)
def test_a_range_is_cut_where_its_log_begins(
    asked: tuple[int, int], there: tuple[int, int] | None, gone: tuple[int, int] | None
) -> None:
    found = still_there({TP: asked[0]}, {TP: asked[1]}, {TP: LOG.first})
    assert found == ([OffsetRange(*TP, *there)] if there else [], [OffsetRange(*TP, *gone)] if gone else [])


def test_a_log_ends_for_a_stored_position_where_its_leaders_epoch_does() -> None:
    """It may have grown beyond the position since, by other records."""
    cut = up_to_epochs({TP: LOG, OTHER: LOG}, {TP: LOG.first + 3, OTHER: LOG.end + 7})
    assert (cut[TP].end, cut[OTHER]) == (LOG.first + 3, LOG)
    starts, (loss,) = resolve_all({TP: LOG.end, OTHER: LOG.end}, cut)
    assert starts == {TP: LOG.first + 3, OTHER: LOG.end}
    assert (loss.tp, loss.why, loss.stored, loss.edge) == (TP, Lost.TRUNCATED, LOG.end, LOG.first + 3)
