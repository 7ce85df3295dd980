"""What other clients say they consumed is read as pauses, and as records that came again."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message

from kunicorn.ipc.clock import now_ns
from tests.soak.confluent_member import refused, told
from tests.soak.consumed import Consumption
from tests.soak.peers import place

SECOND = 1_000_000_000


class Member:
    """Writes what a process would."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.began = now_ns()

    def polled(self, after: float, partition: int, first: int, last: int) -> None:
        """So many seconds after the beginning."""
        wall = time.time_ns() - now_ns() + self.at(after)
        partitions = [{"topic": "t", "partition": partition, "count": 1, "minOffset": first, "maxOffset": last}]
        said = {"timestamp": wall // 1_000_000, "name": "records_consumed", "count": 1, "partitions": partitions}
        self.write(json.dumps(said, separators=(",", ":")) + "\n")

    def write(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)

    def at(self, after: float) -> int:
        """On the clock of the pauses."""
        return self.began + int(after * SECOND)


@pytest.fixture
def member(tmp_path: Path) -> Member:
    return Member(tmp_path / "member-1.jsonl")


def read(member: Member, appended: Mapping[int, Sequence[int]]) -> Consumption:
    found = Consumption(member.path.parent, appended)
    found.read()
    return found


def test_a_pause_lasts_from_when_the_next_record_is_in_the_log_or_the_last_one_was_polled(member: Member) -> None:
    member.polled(1, 0, 0, 9)
    member.polled(5, 0, 10, 19)
    member.polled(9, 0, 20, 29)
    # The 11th record came at 2 s: 3 s of waiting; the 21st at 8.5 s.
    found = read(member, {0: [member.at(0)] * 10 + [member.at(2)] * 10 + [member.at(8.5)] * 10}).take()
    assert found.waits[0] == pytest.approx(3 * SECOND, abs=SECOND // 100)
    assert found.again == 0


def test_of_two_processes_each_may_have_the_next_record(member: Member, tmp_path: Path) -> None:
    other = Member(tmp_path / "member-2.jsonl")
    other.began = member.began
    other.polled(2, 0, 10, 19)
    member.polled(1, 0, 0, 9)
    found = read(member, {0: [member.at(0)] * 20})
    assert found.take().waits[0] == pytest.approx(SECOND, abs=SECOND // 100)
    last = {path.name: when - member.began for path, when in found.polled.items()}
    assert last == pytest.approx({"member-1.jsonl": SECOND, "member-2.jsonl": 2 * SECOND}, abs=SECOND // 100)


def test_what_is_consumed_again_is_counted_and_ends_no_pause(member: Member) -> None:
    member.polled(1, 0, 0, 9)
    member.polled(2, 0, 4, 9)
    member.polled(5, 0, 8, 12)
    found = read(member, {0: [member.at(0)] * 13})
    polled = found.take()
    assert polled.again == 6 + 2
    assert polled.waits[0] == pytest.approx(4 * SECOND, abs=SECOND // 100)
    assert found.behind({0: 20, 1: 5}) == 7 + 5


def test_a_line_that_is_half_written_is_read_when_it_is_whole(member: Member) -> None:
    member.polled(1, 0, 0, 9)
    whole = member.path.read_text()
    member.path.write_text(whole[:40])
    found = read(member, {0: [member.at(0)] * 10})
    assert found.ends[0] == 0
    member.write(whole[40:])
    found.read()
    assert found.ends[0] == 10


def test_whatever_else_a_client_says_is_passed_over(member: Member) -> None:
    member.write('{"timestamp":1,"name":"partitions_assigned","partitions":[]}\n[main] WARN records_consumed\n')
    assert read(member, {}).take().waits == {}


def test_what_happened_is_told_once(member: Member) -> None:
    member.polled(1, 0, 0, 9)
    member.polled(5, 0, 10, 19)
    found = read(member, {0: [member.at(0)] * 20})
    assert found.take().waits
    assert found.take().waits == {}


def test_a_member_of_confluent_kafka_says_it_as_the_java_tool_does() -> None:
    line = told([Message(topic="t", partition=p, offset=o) for p, o in ((0, 4), (1, 7), (0, 5))], 1_700)
    assert json.loads(line) == {
        "timestamp": 1_700,
        "name": "records_consumed",
        "partitions": [
            {"partition": 0, "minOffset": 4, "maxOffset": 5},
            {"partition": 1, "minOffset": 7, "maxOffset": 7},
        ],
    }
    assert told([], 1_700) == ""


def test_a_member_of_confluent_kafka_that_is_refused_for_good_says_why() -> None:
    fatal, retried = KafkaError(KafkaError._FATAL, "fenced"), KafkaError(KafkaError._TRANSPORT, "away")
    error = refused([Message(topic="t"), Message(topic="t", error=retried), Message(topic="t", error=fatal)])
    assert error is not None
    assert error.str() == "fenced"
    assert refused([Message(topic="t"), Message(topic="t", error=retried)]) is None


def test_a_groups_coordinator_is_found_as_brokers_find_it() -> None:
    assert place("abc", 50) == 96354 % 50, "Java's hash code of this text is 96354"
    assert place("polygenelubricants", 50) == 0, "and of this one the lowest integer there is, whose sign is dropped"
