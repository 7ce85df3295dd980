"""Records what Kafka's own assignors plan, for `test_against_kafka`. Needs a JDK.

PYTHONPATH=service python -m tests.contract.assignors.record
"""

from __future__ import annotations

import json
import random
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kunicorn.group.assignors.sticky import pack_assignment
from kunicorn.positions import TopicPartition
from tests.contract.assignors.groups import TOPICS
from tests.kafka.artifacts import distribution

KAFKA = "4.3.1"
RECORDING = Path(__file__).with_name("kafka_plans.jsonl")
RECORDING_WITH_RACKS = Path(__file__).with_name("kafka_rack_plans.jsonl")
_SEED = 54
_SEED_OF_RACKS = 881
_GROUPS = 100


@dataclass
class _Groups:
    """Groups as they could come to be: members hold what an earlier, arbitrary assignment gave them."""

    rng: random.Random
    partitions: dict[str, int] = field(default_factory=dict)

    def next(self) -> dict[str, Any]:
        """One group, as `KafkaPlans` reads it."""
        rng = self.rng
        self.partitions = {topic: rng.randint(1, 9) for topic in rng.sample(TOPICS, rng.randint(1, len(TOPICS)))}
        alike = rng.random() < 0.5
        shared = self._topics()
        members: list[dict[str, Any]] = [
            {
                "member_id": f"m{number}",
                "instance_id": f"pod-{9 - number}" if rng.random() < 0.3 else None,
                "topics": shared if alike else self._topics(),
                "owned": [],
                "generation": rng.choice((4, 4, 5)),
            }
            for number in range(rng.randint(1, 6))
        ]
        if rng.random() < 0.7:
            self._give_a_past(members[: rng.randint(1, len(members))])
        for member in members:
            owned = [TopicPartition(topic, number) for topic, number in member["owned"]]
            member["user_data"] = pack_assignment(owned, member["generation"]).hex()
        return {"partitions": self.partitions, "members": members}

    def _topics(self) -> list[str]:
        return sorted(self.rng.sample(sorted(self.partitions), self.rng.randint(1, len(self.partitions))))

    def _give_a_past(self, members: list[dict[str, Any]]) -> None:
        """Each partition to one of these subscribers or, now and then, to none."""
        for topic, count in sorted(self.partitions.items()):
            subscribers = [member for member in members if topic in member["topics"]]
            for number in range(count):
                if subscribers and self.rng.random() < 0.9:
                    self.rng.choice(subscribers)["owned"].append([topic, number])


def _with_racks(group: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Members and replicas in racks, some in none; now and then all topics are co-partitioned."""
    partitions = group["partitions"]
    if rng.random() < 0.4 and not any(member["owned"] for member in group["members"]):
        count = rng.randint(2, 9)
        group["partitions"] = partitions = dict.fromkeys(partitions, count)
    racks = ["a", "b", "c", "d"][: rng.randint(1, 4)]
    copies = rng.randint(1, 3)
    group["replica_racks"] = {
        topic: [rng.sample([*racks, None], min(copies, len(racks))) for _ in range(count)]
        for topic, count in partitions.items()
    }
    for member in group["members"]:
        member["rack"] = rng.choice([*racks, *racks, "elsewhere", None])
    return group


def main() -> None:
    """Write the recordings."""
    drawn = _Groups(random.Random(_SEED))
    _record([drawn.next() for _ in range(_GROUPS)], RECORDING)
    drawn, rng = _Groups(random.Random(_SEED_OF_RACKS)), random.Random(_SEED_OF_RACKS)
    _record([_with_racks(drawn.next(), rng) for _ in range(_GROUPS)], RECORDING_WITH_RACKS)


def _record(drawn: list[dict[str, Any]], recording: Path) -> None:
    kafka = distribution(KAFKA)
    groups = "\n".join(map(json.dumps, drawn))
    source = Path(__file__).with_name("KafkaPlans.java")
    command = [kafka.java.command, "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", kafka.classpath, str(source)]
    answer = subprocess.run(command, input=groups, stdout=subprocess.PIPE, text=True, check=True).stdout
    recording.write_text(answer)


if __name__ == "__main__":
    main()
