"""The service's tasks: the first thing that is fatal ends it, whatever else goes on."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from kunicorn.supervisor.works import Works


async def for_ever() -> None:
    await asyncio.Event().wait()


async def failing(error: BaseException) -> None:
    raise error


async def test_what_is_served_ends_by_itself_and_its_error_is_the_services() -> None:
    works = Works()
    works.start(for_ever())
    await works.until_over(asyncio.sleep(0))
    with pytest.raises(LookupError, match="gone"):
        await works.until_over(failing(LookupError("gone")))
    await works.cancel()


async def test_a_task_that_fails_ends_the_service_and_the_first_error_counts() -> None:
    works = Works()
    works.start(for_ever(), failing(LookupError("first")))
    with pytest.raises(LookupError, match="first"):
        await works.until_over(for_ever())
    works.fatal(ValueError("second"))
    with pytest.raises(LookupError, match="first"):
        await works.until_over(for_ever())
    await works.cancel()


async def test_after_the_end_was_called_nothing_is_fatal_any_more() -> None:
    works = Works()
    works.end()
    works.fatal(ValueError("too late"))
    await works.until_over(for_ever())
    await works.cancel()


async def test_cancelling_waits_for_what_tasks_have_to_finish() -> None:
    finished = []

    async def careful() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        finished.append("careful")

    works = Works()
    works.start(careful())
    await works.until_over(asyncio.sleep(0))
    await works.cancel()
    assert finished == ["careful"]
