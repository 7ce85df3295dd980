"""How a story's group is set up, and what may happen to it: drawn before anything does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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


def drawn(choices: Choices) -> Plan:
    """Zero is the dull answer, as everywhere."""
    protocol = choices.pick(("classic", "classic", "classic", "consumer"))
    mix = [act for act in ACTS if act in _ALWAYS or choices.chance(40)]
    return Plan(
        protocol=protocol,
        assignor=choices.pick(("cooperative-sticky", "cooperative-sticky", "range")),
        policy=choices.pick(("earliest", "latest")),
        new_group=True,
        in_transactions=choices.chance(30),
        members=choices.pick((1, 2, 3)),
        workers=choices.pick((1, 2)),
        partitions=choices.pick((2, 1, 4)),
        acts=choices.pick((4, 8, 16)),
        mix=tuple(act for act in mix for _ in range(ACTS[act])),
        failing=tuple(api for api in FAILING if choices.chance(30)),
        failing_percent=choices.pick((0, 10, 30, 60)),
        slow_percent=choices.pick((0, 30, 80)),
        planning=choices.pick((0.0, 0.1, 0.8)),
    )
