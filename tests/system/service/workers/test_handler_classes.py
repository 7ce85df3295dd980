"""Classes as handlers, in a real group: their life, and offsets that they keep beside their effects."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.system.members import leave
from tests.system.scene import Scene


def test_a_class_lives_through_assignment_loss_and_an_orderly_end(scene: Callable[..., Scene], tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    played = scene(
        1,
        workers=1,
        handler="living:Diary",
        settings={
            "handler": {"options": {"diary": str(diary)}},
            "group": {"group_instance_id": "pod-1", "session_timeout_ms": 10_000},
        },
    )
    played.send(0, "a", "b")
    member = played.members.start()

    def written(*lines: str) -> bool:
        return diary.exists() and diary.read_text().splitlines()[-len(lines) :] == list(lines)

    member.wait(lambda: written("on_assigned 0@0", "handle 0@0", "handle 0@1"), "the first records")
    # Its place is taken from it while it lives: the next heartbeat says that it is no member any more.
    assert leave(member, "--instance", "pod-1", "--yes").returncode == 0
    # Not committed before it was lost, or committed: either is where the group begins again.
    member.wait(lambda: "on_lost 0@2" in diary.read_text(), "the loss")
    member.wait(lambda: diary.read_text().count("on_assigned") == 2, "the second assignment")
    played.send(0, "c")
    played.wait_all_committed()
    assert member.stop() == 0
    setup, *rest = diary.read_text().splitlines()
    assert setup == f"setup 0 True {played.topic} kunicorn-worker-0"
    assert rest[-2:] == ["on_revoked 0@3", "teardown"]
    assert "kunicorn_hook_failures" not in member.output()


def test_effects_and_offset_in_one_sqlite_transaction_are_there_once_whatever_dies(
    scene: Callable[..., Scene], tmp_path: Path
) -> None:
    path = tmp_path / "payments.db"
    played = scene(
        2,
        handler="keeping:SqlitePayments",
        settings={
            "handler": {"options": {"path": str(path)}},
            "workers": {"max_crashes": 3},
            "group": {"session_timeout_ms": 6000, "allow_short_session_timeout": True},
        },
    )
    values = [["a", "die inside", "b", "die after", "c"], ["d", "die after", "e"]]
    for partition, some in enumerate(values):
        played.send(partition, *some)
    member = played.members.start()

    def paid() -> list[tuple[int, int, str]]:
        try:
            with closing(sqlite3.connect(path, timeout=10)) as db:
                return sorted(db.execute("SELECT partition, at, amount FROM payments"))
        except sqlite3.OperationalError:
            return []  # There are no tables yet.

    everything = [(partition, at, value) for partition, some in enumerate(values) for at, value in enumerate(some)]
    member.wait(lambda: len(paid()) >= len(everything), "everything to be paid")
    # A supervisor that dies takes nothing along either, though nothing of it was ever committed to Kafka.
    member.kill()
    played.send(0, "f")
    second = played.members.start()
    second.wait(lambda: (0, 5, "f") in paid(), "the record after the kill")
    assert second.stop() == 0, "offsets that a handler keeps are no business of the group's"
    assert paid() == sorted([*everything, (0, 5, "f")])
    assert set(played.committed().values()) <= {0, -1001, -1}, (
        "only the start offset, for want of another, is committed"
    )
