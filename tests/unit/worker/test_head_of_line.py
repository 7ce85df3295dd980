"""When partitions are held back for those that stand behind them in the client's queue. The client is played."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kunicorn.ipc.clock import NANOSECONDS
from kunicorn.positions import TopicPartition
from kunicorn.worker.buffering import HeadOfLine

BACKLOG = TopicPartition("t", 0)
ROOM = 1000
LONG_AGO = -60 * NANOSECONDS


class Table:
    """What a table of partitions tells, and is asked for."""

    def __init__(self) -> None:
        self.held_back: set[TopicPartition] = set()
        self.came_at = LONG_AGO
        self.bytes = 0

    @property
    def paused(self) -> bool:
        return bool(self.held_back)

    def partitions(self) -> Iterable[TopicPartition]:
        return [BACKLOG]

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self.held_back |= set(partitions)

    def resume(self) -> None:
        self.held_back.clear()


class Scene:
    def __init__(self, delays: Mapping[str, int] | None = None, ahead_bytes: int = ROOM) -> None:
        self.table = Table()
        self.line = HeadOfLine(self.table, ahead_bytes, delays or {})

    def asked(self, now: float, kept: int) -> tuple[bool, bool]:
        """With so many bytes in memory: whether the client is asked for more, and whether the backlog is held back."""
        self.table.bytes = kept
        return self.line.room(int(now * NANOSECONDS)) > 0, BACKLOG in self.table.held_back


def test_all_that_the_client_has_is_taken_in_while_there_is_room() -> None:
    scene = Scene()
    scene.table.came_at = 0
    assert scene.asked(0.1, ROOM - 1) == (True, False)
    scene.table.came_at = LONG_AGO
    assert scene.asked(0.2, ROOM) == (False, False), "nobody has come: the backlog keeps what the client has of it"


def test_who_comes_when_there_is_no_room_has_the_backlog_held_back_for_a_second() -> None:
    scene = Scene()
    scene.table.came_at = 0
    assert [scene.asked(at, ROOM) for at in (0.1, 0.9, 1.1)] == [(True, True), (True, True), (False, False)]


def test_what_is_held_back_goes_on_as_soon_as_half_of_what_is_kept_is_handled() -> None:
    scene = Scene()
    scene.table.came_at = 0
    assert scene.asked(0.1, ROOM) == (True, True)
    assert scene.asked(0.2, ROOM // 2) == (True, True)
    assert scene.asked(0.3, ROOM // 2 - 1) == (True, False)


def test_however_many_come_memory_holds() -> None:
    scene = Scene()
    scene.table.came_at = 0
    assert scene.asked(0.1, ROOM + ROOM // 2 - 1) == (True, True)
    assert scene.asked(0.1, ROOM + ROOM // 2) == (False, True)


def test_no_more_records_are_asked_for_than_there_is_room_for() -> None:
    scene = Scene(ahead_bytes=100_000)
    line = scene.line
    line.took(1, 2000)
    scene.table.bytes = 90_000
    assert line.room(0) == 5
    scene.table.bytes = 100_000
    assert line.room(0) == 0


def test_records_of_which_next_to_nothing_was_kept_leave_the_client_to_be_asked_for_more() -> None:
    line = Scene(ahead_bytes=100_000).line
    line.took(1000, 700)
    assert line.room(0) > 0


def test_retry_topics_are_looked_at_twice_within_their_delay() -> None:
    scene = Scene({"t.retry": 60_000, "t.later": 10_000})
    looks = [at for at in range(1, 16) if scene.asked(at, ROOM) == (True, True)]
    assert looks == [5, 10, 15]


def test_nobody_stays_held_back_who_has_nothing_left() -> None:
    scene = Scene()
    scene.table.came_at = 0
    assert scene.asked(0.1, ROOM) == (True, True)
    scene.line.resume()
    assert not scene.table.paused
