"""How a story's group is set up, and what may happen to it: drawn before anything does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kunicorn.kafka.versions import Api
from tests.contract.supervisor.brokers import FAILING
from tests.contract.worker.choices import Choices

ACTS: Mapping[str, int] = {
    "write": 6,
    "revive": 3,
    "resume": 2,
    "join": 3,
    "leave": 1,
    "crash": 1,
    "move": 3,
    "shake": 3,
    "kill": 2,
    "stick": 2,
    "retain": 1,
    "deny": 1,
    "pause": 2,
    "grow": 1,
    "recreate": 1,
}
"""What may happen, and how often beside the others."""
_ACTS_IN_TRANSACTIONS: Mapping[str, int] = {"kill": 10, "recreate": 4}
"""There a worker's death leaves open where its partitions go on, which is looked up anew."""
PERSON_ACTS: Mapping[str, int] = {"seek": 6, "replace_code": 2, "shift": 4, "fetch_anew": 2, "recycle": 4}
"""Likewise, in stories of seeds from `PERSONS_FROM` on."""
PERSONS_FROM = 500
"""Seeds from here on tell of people who put partitions elsewhere and replace code, of partitions that move between
workers, of records that cannot be handled, and of workers with several in hand."""
AWAY_FROM = 1000
"""Seeds from here on tell of coordinators that are away for longer than a commit may take, as a dead one is until it
has a successor: an orderly rebalance has nothing handled twice for that."""
LATE_FROM = 1500
"""Seeds from here on tell, besides, of topics that grow and are created anew in groups with the consumer protocol, too,
and of brokers that hear of it late, each when chance says, so that members are told now this and now that."""
BUSY_FROM = 2000
"""Seeds from here on tell, besides what those from `PERSONS_FROM` on do, of members that lose what they have and are
back at once, and of workers that do not get to what they are told while their machine is busy. The lease, in shared
memory, they see at once."""
BUSY_ACTS: Mapping[str, int] = {"cut": 6, "write": 6}
TOPIC_ACTS: Mapping[str, int] = {"recreate": 3, "grow": 3, "join": 1, "write": 2}
_NOT_BESIDE_AWAY = frozenset({"move", "shake", "stick"})
"""The coordinator dies as often as it can; and a worker that outlives SIGKILL uses up the rebalance timeout."""
_AWAY_EVERY = 8
_ALWAYS = ("write", "revive", "resume", "join")


@dataclass(frozen=True, slots=True)
class Plan:
    """One story's."""

    protocol: str
    assignor: str
    policy: str
    new_group: bool
    in_transactions: bool
    members: int
    workers: int
    partitions: int
    acts: int
    mix: tuple[str, ...]
    failing: tuple[Api, ...]
    failing_percent: int
    slow_percent: int
    planning: float
    """Seconds that the leader takes to plan."""
    at_once: int | None = None
    """Records of a partition that a worker has in hand; None: one, in order."""
    failing_records_percent: int = 0
    static: bool = False
    """Members have names of their own, under which they come again."""
    away: bool = False
    """See `AWAY_FROM`."""
    late: bool = False
    """See `LATE_FROM`."""
    busy_percent: int = 0
    """How often a worker does not get to what it is told, in a moment of its life; see `BUSY_FROM`."""


def drawn(choices: Choices) -> Plan:
    """Zero is the dull answer, as everywhere."""
    protocol = choices.pick(("classic", "classic", "classic", "consumer"))
    in_transactions = choices.chance(30)
    often = _ACTS_IN_TRANSACTIONS if in_transactions else {}
    acts = {**ACTS, **often}
    mix = [act for act in acts if act in _ALWAYS or choices.chance(70 if act in often else 40)]
    return Plan(
        protocol=protocol,
        assignor=choices.pick(("cooperative-sticky", "cooperative-sticky", "range")),
        policy=choices.pick(("earliest", "latest")),
        new_group=True,
        in_transactions=in_transactions,
        members=choices.pick((1, 2, 3)),
        workers=choices.pick((1, 2)),
        partitions=choices.pick((2, 1, 4)),
        acts=choices.pick((4, 8, 16)),
        mix=tuple(act for act in mix for _ in range(acts[act])),
        failing=tuple(api for api in FAILING if choices.chance(30)),
        failing_percent=choices.pick((0, 10, 30, 60)),
        slow_percent=choices.pick((0, 30, 80)),
        planning=choices.pick((0.0, 0.1, 0.8)),
    )


def with_persons(choices: Choices, plan: Plan) -> Plan:
    """See `PERSONS_FROM`."""
    mix = [act for act in PERSON_ACTS if choices.chance(50)]
    return replace(
        plan,
        acts=2 * plan.acts,
        mix=(*plan.mix, *(act for act in mix for _ in range(PERSON_ACTS[act]))),
        at_once=None if plan.in_transactions else choices.pick((None, 2, 4)),
        failing_records_percent=choices.pick((0, 0, 5, 20)),
        static=choices.chance(30),
    )


def with_absences(plan: Plan) -> Plan:
    """See `AWAY_FROM`. Nothing else keeps a commit from being taken for so long."""
    mix = [act for act in plan.mix if act not in _NOT_BESIDE_AWAY]
    failing = tuple(api for api in plan.failing if api not in (Api.OFFSET_COMMIT, Api.FIND_COORDINATOR))
    return replace(plan, acts=2 * plan.acts, mix=(*mix, *["away"] * _AWAY_EVERY), failing=failing, away=True)


def with_late_brokers(choices: Choices, plan: Plan) -> Plan:
    """See `LATE_FROM`. The coordinator's death leaves members to one broker, which may be the one that is behind."""
    away = with_absences(plan)
    mix = (*away.mix, *_as_often(TOPIC_ACTS))
    return replace(away, protocol=choices.pick(("consumer", "consumer", "consumer", "classic")), mix=mix, late=True)


def with_busy_workers(choices: Choices, plan: Plan) -> Plan:
    """See `BUSY_FROM`."""
    busy = with_persons(choices, plan)
    return replace(busy, mix=(*busy.mix, *_as_often(BUSY_ACTS)), busy_percent=choices.pick((30, 80, 95)))


def _as_often(acts: Mapping[str, int]) -> Iterator[str]:
    return (act for act, often in acts.items() for _ in range(often))
