"""The checks that keep up with each change find what a look at the whole group would, and each finds its defect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from kunicorn.group import events as ev
from kunicorn.group.assignors import ASSIGNORS
from kunicorn.group.protocol import JoinAnswer, Plan, Subscription, SyncAnswer
from kunicorn.positions import TopicPartition
from tests.fakes.classic_group import ClassicGroup
from tests.fakes.consumer_group import ConsumerGroup
from tests.fakes.host import Host
from tests.fakes.java_member import JavaHost
from tests.fakes.owners import Owners
from tests.fakes.requests import Join, Sync
from tests.fakes.simulation import TIMINGS, TOPIC, Meter, Simulation, consumer_group

PARTITIONS = [TopicPartition(TOPIC, number) for number in range(6)]
A, B = PARTITIONS[:2]


@dataclass(eq=False)
class Holder:
    """A member that does what a test says."""

    name: str
    certain: bool = True

    @property
    def identity(self) -> str:
        return self.name


def owners() -> Owners:
    return Owners(PARTITIONS, 0.0)


def test_a_partition_without_an_owner_is_found_and_its_time_is_counted() -> None:
    found, first = owners(), Holder("first")
    found.take(first, PARTITIONS, 1.0)
    found.check_settled()
    found.release(first, [A, B], 2.0)
    found.count(5.0)
    assert found.unowned_seconds == 6 * 1.0 + 2 * 3.0
    with pytest.raises(AssertionError, match=f"2 partitions have no owner, {A} is one of them"):
        found.check_settled()


def test_a_partition_with_two_owners_is_not_settled() -> None:
    found = owners()
    found.take(Holder("first"), PARTITIONS, 1.0)
    found.take(Holder("second", certain=False), [A], 1.0)
    with pytest.raises(AssertionError, match="several owners"):
        found.check_settled()


def test_only_what_another_member_takes_up_has_moved() -> None:
    found, first, second = owners(), Holder("first"), Holder("second")
    found.take(first, [A, B], 1.0)
    found.release(first, [A, B], 2.0)
    found.take(first, [A], 3.0)
    found.take(second, [B], 3.0)
    assert found.moved == 1


# -- beside a look at the whole ----------------------------------------------------------------------------------------


def test_what_is_kept_up_is_what_a_look_at_everything_finds() -> None:
    rng, found = Random(4), owners()
    holders = [Holder(f"holder-{number}") for number in range(4)]
    running: Mapping[str, set[TopicPartition]] = {holder.name: set() for holder in holders}
    unowned = now = 0.0
    for _ in range(3000):
        passed = rng.random()
        now += passed
        unowned += passed * (len(PARTITIONS) - len(set().union(*running.values())))
        holder, tps = rng.choice(holders), set(rng.sample(PARTITIONS, rng.randrange(3)))
        if rng.random() < 0.4:
            found.take(holder, tps - running[holder.name], now)
            running[holder.name].update(tps)
        else:
            found.release(holder, tps & running[holder.name], now)
            running[holder.name].difference_update(tps)
        holder.certain = rng.random() < 0.7
        handled = Counter(tp for each in holders if each.certain for tp in running[each.name])
        assert fails(found.check) == any(count > 1 for count in handled.values())
        others = set().union(*(running[each.name] for each in holders if each.certain and each is not holder))
        assert fails(found.check_given, holder, [A]) == (A in others)
        assert set(found.unowned) == set(PARTITIONS).difference(*running.values())
        assert found.unowned_seconds == pytest.approx(unowned)


def fails(check: Any, *args: Any) -> bool:
    try:
        check(*args)
    except AssertionError:
        return True
    return False


# -- in the model: what breaks, and which check says so ----------------------------------------------------------------


class Broken(Meter):
    """A leader that plans wrong."""

    def plan(self, host: Host, request: ev.MakePlan) -> tuple[Plan, float]:
        return self.spoil(host, request, host.plan(request)), 0.1

    def spoil(self, host: Host, request: ev.MakePlan, plan: Plan) -> Plan:
        raise NotImplementedError


class Hasty(Broken):
    """It gives away what its owners have still to let go of."""

    def spoil(self, host: Host, request: ev.MakePlan, plan: Plan) -> Plan:
        return ASSIGNORS["range"].plan(request.members, host.world.counts, {})


class Twice(Broken):
    """It gives one partition to everybody."""

    def spoil(self, host: Host, request: ev.MakePlan, plan: Plan) -> Plan:
        return {member: sorted({*mine, A}) for member, mine in plan.items()}


class Forgetful(Broken):
    """It gives one partition to nobody."""

    def spoil(self, host: Host, request: ev.MakePlan, plan: Plan) -> Plan:
        return {member: [tp for tp in mine if tp != A] for member, mine in plan.items()}


@pytest.mark.parametrize("kind", [Host, JavaHost])
@pytest.mark.parametrize(
    ("meter", "said"),
    [
        (Hasty(), "is given to host-. while host-. may handle it"),
        (Twice(), "is given to host-. while host-. may handle it|invariant 4"),
        (Forgetful(), f"1 partitions have no owner, {A}"),
    ],
    ids=["given too early", "two owners", "no owner"],
)
def test_a_leader_that_plans_wrong_is_found_out(kind: type[Host], meter: Meter, said: str) -> None:
    world = Simulation(Random(5), 12, meter=meter)

    def grow() -> None:
        for number in range(3):
            kind(world, f"host-{number}", "cooperative-sticky")
            world.settle()

    with pytest.raises(AssertionError, match=said):
        grow()


class Clinging(Host):
    """It says that it let go of partitions, and goes on with them."""

    def _stop_running(self, partitions: set[TopicPartition]) -> None:
        pass


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky", None])
def test_a_member_that_lets_go_in_words_only_is_found_out(assignor: str | None) -> None:
    world = Simulation(Random(6), 12, group=consumer_group(12) if assignor is None else None)
    Clinging(world, "host-0", assignor)
    world.settle()
    Host(world, "host-1", assignor)
    with pytest.raises(AssertionError, match=r"is given to host-. while host-. may handle it"):
        world.run(60.0)


class HastyCoordinator(ConsumerGroup):
    """It does not wait for partitions that others hold."""

    def _elsewhere(self, place: Any, wanted: frozenset[int]) -> frozenset[int]:
        return frozenset()


def test_a_coordinator_that_does_not_wait_is_found_out() -> None:
    group = HastyCoordinator(TOPIC, consumer_group(0).topic_id, 12, TIMINGS.session_timeout)
    world = Simulation(Random(7), 12, group=group)
    Host(world, "host-0", None, drain=2.0)
    world.settle()
    Host(world, "host-1", None)
    with pytest.raises(AssertionError, match=r"is given to host-. while host-. may handle it"):
        world.run(60.0)


# -- timers and holders ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky", None])
@pytest.mark.parametrize("seed", range(3))
def test_no_timer_of_the_coordinator_is_missed_and_no_holder_forgotten(assignor: str | None, seed: int) -> None:
    """A coordinator looks at its members when the first timer is due; here, beside it, all of them are looked at."""
    rng = Random(seed)
    group = (
        replace(consumer_group(12), assignment_interval=1.0) if assignor is None else ClassicGroup(initial_delay=3.0)
    )
    world = Simulation(rng, 12, group=group)
    for number in range(60):
        if len(world.living) < 5 and rng.random() < 0.5:
            Host(world, f"host-{number}", assignor, f"i-{number}" if rng.random() < 0.3 else None)
        elif world.living:
            host = rng.choice(world.living)
            rng.choice((host.crash, host.leave, world.move, host.commit))()
        world.run(rng.choice((0.1, 1.0, 7.0)))
        assert group.deadline() <= group._earliest()
        if isinstance(group, ConsumerGroup):
            held = {n: place.member_id for place in group.places.values() for n in place.holds}
            assert group._holders == held
    while len(world.living) < 2:
        Host(world, f"late-{len(world.living)}", assignor)
    world.settle()


def test_a_new_group_waits_as_long_as_members_come() -> None:
    world = Simulation(Random(8), 12, group=ClassicGroup(initial_delay=3.0))
    for number in range(4):
        Host(world, f"host-{number}", "range")
        world.run(1.0)
    world.run(1.5)
    assert world.group.rebalances == 0, "the last one came within the three seconds before"
    world.settle()
    assert world.group.rebalances == 1


def test_assignments_of_the_consumer_protocol_keep_their_distance() -> None:
    group = replace(consumer_group(12), assignment_interval=1.0)
    world = Simulation(Random(9), 12, group=group)
    for number in range(8):
        Host(world, f"host-{number}", None)
    world.run(0.9)
    assert group.rebalances == 1
    world.settle()
    assert group.rebalances == 2


def joined(group: ClassicGroup, member_id: str, session_timeout: float, now: float) -> list[JoinAnswer]:
    answers: list[JoinAnswer] = []
    wishes = {"range": Subscription((TOPIC,))}
    group.join(Join(member_id, wishes, None, session_timeout, 300.0), answers.append, now)
    return answers


def test_an_id_that_nobody_comes_back_with_is_forgotten_in_time() -> None:
    group = ClassicGroup()
    joined(group, "", 10.0, 0.0)
    assert group.deadline() <= 10.0


def test_the_session_of_a_member_that_waited_for_an_answer_ends_in_time() -> None:
    """Nobody looked at it while it waited, and the leader's own session is ten times as long."""
    group = ClassicGroup()
    ids = [joined(group, "", session, 0.0)[0].member_id for session in (60.0, 6.0)]
    for member_id, session in zip(ids, (60.0, 6.0), strict=True):
        joined(group, member_id, session, 0.0)
    leader, follower = ids
    synced: list[SyncAnswer] = []
    group.sync(Sync(follower, group.generation, {}), synced.append, 1.0)
    group.tick(20.0)
    assert group.deadline() > 26.0
    group.sync(Sync(leader, group.generation, {}), synced.append, 20.0)
    assert len(synced) == 2
    assert group.deadline() <= 26.0
