"""Cancellations that an `async def` handler has asked of its own task, or has swallowed: none of them is meant for what
comes behind its call.

A cancellation comes up at the task's next wait. If the handler returns before that, this is the wait of a middleware,
or of the next record's call; or the task ends as cancelled although its coroutine has returned.

And those that kunicorn asks for as the handler's loop ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

CLOSING_SECONDS = 1.0


async def settled(returned: Awaitable[T]) -> T:
    """What it comes to, with the task's cancellations cleared. What it raises propagates, a cancellation that has come
    up included.
    """
    result = await returned
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        await step_aside(task)
    return result


async def step_aside(task: asyncio.Task[Any]) -> None:
    """Clear the cancellations of the current task; whatever else is due has the loop meanwhile.

    One that has not come up does so here. One that was swallowed would be taken by a TaskGroup of the next record for
    its own (`Task.cancelling`).
    """
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while task.cancelling():
        task.uncancel()


async def wind_up() -> None:
    """Cancel the loop's other tasks, and close its asynchronous generators: each may hold a connection that its
    `finally` gives back. Waits a second for the tasks, and one for the generators.
    """
    loop = asyncio.get_running_loop()
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=CLOSING_SECONDS)
    await asyncio.wait([loop.create_task(loop.shutdown_asyncgens())], timeout=CLOSING_SECONDS)
