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

from kunicorn.group.assignors.userdata import pack_assignment
from kunicorn.topics import TopicPartition
from tests.contract.assignors.groups import TOPICS
from tests.kafka.artifacts import distribution

KAFKA = "4.3.1"
RECORDING = Path(__file__).with_name("kafka_plans.jsonl")
_SEED = 54
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


def main() -> None:
    """Write the recording."""
    kafka = distribution(KAFKA)
    drawn = _Groups(random.Random(_SEED))
    groups = "\n".join(json.dumps(drawn.next()) for _ in range(_GROUPS))
    source = Path(__file__).with_name("KafkaPlans.java")
    command = [kafka.java.command, "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", kafka.classpath, str(source)]
    answer = subprocess.run(command, input=groups, stdout=subprocess.PIPE, text=True, check=True).stdout
    RECORDING.write_text(answer)


if __name__ == "__main__":
    main()
