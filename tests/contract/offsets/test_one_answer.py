"""The service, catch-up, the other jobs and the commands: for the same facts they start at the same offset."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import pytest

from kunicorn.commands.group_lag import Standing
from kunicorn.commands.offsets import ToDatetime, ToOffset, planned
from kunicorn.errors import ConfigError
from kunicorn.group.protocol import Committed, EpochEnd, LogOffset, OffsetFetchAnswer
from kunicorn.kafka.stored_positions import resolve_all, up_to_epochs
from kunicorn.pipeline.catch_up import starts_of
from kunicorn.pipeline.plan import Bounds, ByTime, Everywhere, check_nothing_lost, plan
from kunicorn.positions import EARLIEST, LATEST, NO_EPOCH, NO_OFFSET, Edges, Offsets, Position, TopicPartition
from kunicorn.supervisor.offsets.start_offsets import find, look_up, recover

TP, ADDED = TopicPartition("orders", 0), TopicPartition("orders", 1)
LOG = Edges(100, 500)


@dataclass(frozen=True)
class Facts:
    """What a group has committed for each partition, metadata beside it, and the policy."""

    committed: Mapping[TopicPartition, Committed]
    policy: str = "earliest"
    epoch_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where the logs of the committed leader epochs end, as far as the brokers know."""


class Brokers:
    """Answer from the facts. The time of a record is its offset; both partitions' logs are `LOG`."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    async def fetch_committed(self, partitions: Collection[TopicPartition]) -> OffsetFetchAnswer:
        return OffsetFetchAnswer(0, {tp: self._facts.committed.get(tp, Committed(0)) for tp in partitions})

    async def list_offsets(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogOffset]:
        return {tp: LogOffset(0, _answered(at)) for tp, at in queries.items()}

    async def epoch_ends(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:
        known = {
            tp: EpochEnd(0, at, self._facts.epoch_ends[tp])
            for tp, at in queries.items()
            if tp in self._facts.epoch_ends
        }
        return dict.fromkeys(queries, EpochEnd(0)) | known

    async def confirm_ids(self, topics: Collection[str]) -> None: ...

    def is_of_another_topic(self, topic: str, committed: Committed) -> bool:
        return False

    def created_anew(self, topic: str) -> bool:
        return False

    def partitions_of(self, topics: Collection[str]) -> list[TopicPartition]:
        return [TP, ADDED]

    # What planning asks (`kunicorn.pipeline.plan.Asked`).

    def topic_ids(self, topics: object) -> dict[str, str]:
        return {}

    def edges(self, partitions: object) -> dict[TopicPartition, Edges]:
        return {TP: LOG}

    def at(self, times: Offsets) -> dict[TopicPartition, int]:
        return {tp: _answered(at) for tp, at in times.items()}


def _answered(at: int) -> int:
    special = {EARLIEST: LOG.first, LATEST: LOG.end}
    return special.get(at, max(LOG.first, at) if at < LOG.end else NO_OFFSET)


Starts = dict[TopicPartition, int | None]
"""None: a person has to decide."""


def service(facts: Facts) -> Starts:
    async def starts() -> Starts:
        brokers = Brokers(facts)
        found = await look_up(brokers, [TP, ADDED], facts.policy)
        # A worker finds out that the log does not hold what is committed.
        lost = {tp: at for tp, at in found.committed.items() if not LOG.first <= at.offset <= LOG.end}
        again = await recover(brokers, lost, facts.policy)
        known: dict[TopicPartition, Position] = {**found.committed, **found.chosen, **again.chosen}
        return {tp: None if tp in {**found.open, **again.refused} else known[tp].offset for tp in (TP, ADDED)}

    return asyncio.run(starts())


def catch_up(facts: Facts) -> Starts:
    committed = {tp: facts.committed.get(tp, Committed(0)) for tp in (TP, ADDED)}
    try:
        logs = {TP: LOG, ADDED: LOG}
        ends = facts.epoch_ends
        starts, _ = starts_of(committed, logs, facts.policy, fail_on_data_loss=False, epoch_ends=ends)
        return {tp: start.offset for tp, start in starts.items()}
    except ConfigError as error:
        # It names the first partition that a person has to decide on, and the run does not begin.
        return {tp: None for tp in committed if str(tp) in str(error)}


def jobs(facts: Facts) -> Starts:
    """Export, stream and a backfill that is resumed: what they have stored, against the log of now."""
    stored = {tp: found.offset for tp, found in facts.committed.items() if found.offset != NO_OFFSET}
    logs = up_to_epochs(dict.fromkeys(stored, LOG), facts.epoch_ends)
    starts, _ = resolve_all(stored, logs)
    return dict(starts)


def commands(facts: Facts) -> Starts:
    """`kunicorn offsets` and `lag`."""
    stored = {tp: found.offset for tp, found in facts.committed.items() if found.offset != NO_OFFSET}
    return {
        tp: Standing(tp, at, LOG.first, LOG.end, epoch_end=facts.epoch_ends.get(tp)).start for tp, at in stored.items()
    }


EVERY: tuple[Callable[[Facts], Starts], ...] = (service, catch_up, jobs, commands)


@pytest.mark.parametrize("user", EVERY, ids=lambda user: user.__name__)
@pytest.mark.parametrize(("stored", "start"), [(100, 100), (250, 250), (500, 500), (99, 100), (0, 100)], ids=str)
def test_a_stored_position_goes_on_at_the_same_offset(user: Callable[[Facts], Starts], stored: int, start: int) -> None:
    assert user(Facts({TP: Committed(0, stored), ADDED: Committed(0, 100)}))[TP] == start


@pytest.mark.parametrize("user", EVERY, ids=lambda user: user.__name__)
def test_behind_a_truncation_all_go_on_at_the_logs_end(user: Callable[[Facts], Starts]) -> None:
    for policy in ("earliest", "latest"):
        assert user(Facts({TP: Committed(0, 900), ADDED: Committed(0, 100)}, policy))[TP] == 500


@pytest.mark.parametrize("user", EVERY, ids=lambda user: user.__name__)
def test_where_the_stored_epoch_was_cut_all_go_on_at_its_end(user: Callable[[Facts], Starts]) -> None:
    # The log has grown beyond the stored offset since, with other records.
    committed = {TP: Committed(0, 400, 3), ADDED: Committed(0, 100)}
    for policy in ("earliest", "latest"):
        assert user(Facts(committed, policy, {TP: 300}))[TP] == 300


@pytest.mark.parametrize(("at", "epoch_ends"), [(900, {}), (400, {TP: 300})])
def test_a_job_that_may_lose_nothing_leaves_a_truncation_to_a_person(
    at: int, epoch_ends: Mapping[TopicPartition, int]
) -> None:
    logs = {TP: LOG, ADDED: LOG}
    with pytest.raises(ConfigError, match="fail_on_data_loss = false"):
        check_nothing_lost(resolve_all({TP: at}, up_to_epochs(logs, epoch_ends))[1])
    committed = {TP: Committed(0, at, 3), ADDED: Committed(0, 100)}
    with pytest.raises(ConfigError, match="fail_on_data_loss = false"):
        starts_of(committed, logs, "earliest", fail_on_data_loss=True, epoch_ends=epoch_ends)


@pytest.mark.parametrize("user", [service, catch_up], ids=lambda user: user.__name__)
@pytest.mark.parametrize(
    ("metadata", "policy", "starts"),
    [
        # Nothing is committed at all: the group begins now.
        (None, "earliest", {TP: 100, ADDED: 100}),
        (None, "latest", {TP: 500, ADDED: 500}),
        (None, "none", {TP: None, ADDED: None}),
        # The other partition was added since, or was there and its choice is not committed yet: the commit says which.
        ("", "latest", {TP: 250, ADDED: 100}),
        ("kunicorn:partitions:1", "latest", {TP: 250, ADDED: 100}),
        ("kunicorn:partitions:2", "latest", {TP: 250, ADDED: 500}),
        ("kunicorn:partitions:2", "earliest", {TP: 250, ADDED: 100}),
        ("", "none", {TP: 250, ADDED: None}),
    ],
)
def test_what_is_not_committed_begins_at_the_same_edge(
    user: Callable[[Facts], Starts], metadata: str | None, policy: str, starts: Starts
) -> None:
    committed = {} if metadata is None else {TP: Committed(0, 250, NO_EPOCH, metadata)}
    found = user(Facts(committed, policy))
    assert found.items() <= starts.items()
    assert set(found) == set(starts) or None in found.values()


@pytest.mark.parametrize(("time", "start"), [(0, 100), (250, 250), (499, 499), (500, 500), (9_999, 500)])
def test_a_time_before_and_behind_all_records_is_the_same_offset_for_assign_for_reset_and_for_a_job(
    time: int, start: int
) -> None:
    brokers = Brokers(Facts({}))
    assert asyncio.run(find(brokers, {TP: time})).given[TP].offset == start
    (move,) = planned(ToDatetime(time), [Standing(TP, 1, LOG.first, LOG.end)], {TP: _answered(time)})
    assert move.then == start
    bounds = Bounds(ByTime(time, {}), Everywhere(LATEST), unmatched_is_latest=True)
    found = plan([TP], bounds, brokers, fail_on_data_loss=True)
    assert [each.start for each in found.ranges] == ([start] if start < 500 else [])


def test_the_edges_are_the_same_for_assign_and_for_reset() -> None:
    brokers, standing = Brokers(Facts({})), [Standing(TP, 1, LOG.first, LOG.end)]
    for at in (EARLIEST, LATEST, 300):
        (move,) = planned(ToOffset(at), standing, {})
        assert move.then == asyncio.run(find(brokers, {TP: at})).given[TP].offset
