"""The service's tasks: the first thing that is fatal ends it, whatever else goes on."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from kunicorn.errors import HandlerLoadError
from kunicorn.ipc import clock
from kunicorn.supervisor.notifier import Notifier
from kunicorn.supervisor.tasks import ServiceTasks


async def for_ever() -> None:
    await asyncio.Event().wait()


async def failing(error: BaseException) -> None:
    raise error


def unwound(error: Exception) -> None:
    raise AssertionError("what is served had ended already", error)


async def test_what_is_served_ends_by_itself_and_its_error_is_the_services() -> None:
    tasks = ServiceTasks()
    tasks.start(for_ever())
    await tasks.until_over(asyncio.sleep(0), unwound)
    with pytest.raises(LookupError, match="gone"):
        await tasks.until_over(failing(LookupError("gone")), unwound)
    await tasks.cancel(60)


async def test_a_task_that_fails_ends_the_service_and_the_first_error_counts() -> None:
    tasks = ServiceTasks()
    tasks.start(for_ever())
    tasks.start(failing(LookupError("first")))
    with pytest.raises(LookupError, match="first"):
        await tasks.until_over(for_ever(), lambda _: tasks.end())
    tasks.start(failing(ValueError("second")))
    await asyncio.sleep(0)
    with pytest.raises(LookupError, match="first"):
        await tasks.until_over(for_ever(), lambda _: tasks.end())
    await tasks.cancel(60)


async def test_after_the_end_was_called_nothing_is_fatal_any_more() -> None:
    tasks = ServiceTasks()
    tasks.end()
    tasks.start(failing(ValueError("too late")))
    await asyncio.sleep(0)
    await tasks.until_over(for_ever(), lambda _: tasks.end())
    await tasks.cancel(60)


async def test_cancelling_waits_for_what_tasks_have_to_finish() -> None:
    finished = []

    async def careful() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        finished.append("careful")

    tasks = ServiceTasks()
    tasks.start(careful())
    await tasks.until_over(asyncio.sleep(0), unwound)
    await tasks.cancel(60)
    assert finished == ["careful"]


async def test_what_is_fatal_is_logged_when_it_happens_and_what_is_served_is_wound_up_before_it_is_raised(
    capfd: pytest.CaptureFixture[str],
) -> None:
    tasks, told = ServiceTasks(), asyncio.Event()
    seen: list[str] = []

    async def leaving() -> None:
        await told.wait()
        seen.append("left")

    def wind_up(error: Exception) -> None:
        seen.append(f"{error} is told: {'no database' in capfd.readouterr().err}")
        told.set()

    tasks.start(failing(HandlerLoadError("no database")))
    with pytest.raises(HandlerLoadError, match="no database"):
        await tasks.until_over(leaving(), wind_up)
    assert seen == ["no database is told: True", "left"]
    assert "no database" not in capfd.readouterr().err, "once"


async def test_a_cancellation_that_gets_lost_is_repeated_until_the_task_has_ended() -> None:
    """As by a wait with a time limit that gives the result it got in the same turn, and drops the cancellation."""
    lost: list[str] = []

    async def deaf_twice() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if len(lost) == 2:
                    raise
                lost.append("a cancellation")

    tasks = ServiceTasks()
    tasks.start(deaf_twice())
    await asyncio.sleep(0)
    assert await tasks.cancel(30) == []
    assert len(lost) == 2


async def test_a_task_that_cannot_be_cancelled_is_named_and_left_behind() -> None:
    over = asyncio.Event()

    async def deaf() -> None:
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await over.wait()

    tasks = ServiceTasks()
    tasks.start(deaf())
    await asyncio.sleep(0)
    (named,) = await tasks.cancel(0.1)
    assert named.endswith("deaf")
    over.set()
    assert await tasks.cancel(60) == []


async def test_everybody_who_waits_looks_again_when_something_has_changed() -> None:
    notifier, done = Notifier(), set[str]()
    first = asyncio.create_task(notifier.wait(lambda: "first" in done))
    second = asyncio.create_task(notifier.wait(lambda: "second" in done))
    async with asyncio.timeout(60):
        for name, task in (("first", first), ("second", second)):
            await asyncio.sleep(0)
            done.add(name)
            notifier.notify()
            assert await task


async def test_a_condition_that_does_not_come_in_time_is_waited_for_no_longer() -> None:
    assert not await Notifier().wait(lambda: False, clock.now() + 0.01)
    assert await Notifier().wait(lambda: True, clock.now() - 1), "it holds already"
