"""A worker that is killed needs a process of its own."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Awaitable, Callable, Generator
from typing import Any


def then_killed(returned: Any) -> Any:
    """SIGKILL to this process once the handler is through: at once, or when what it returned has been gone through.

    As the kernel's out-of-memory killer does: nothing more of this process runs.
    """
    if inspect.isawaitable(returned):
        return _awaited(returned)
    if inspect.isgenerator(returned):
        return _exhausted(returned)
    os.kill(os.getpid(), signal.SIGKILL)
    return returned


async def _awaited(returned: Awaitable[Any]) -> Any:
    return then_killed(await returned)


def _exhausted(returned: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    yield from returned
    then_killed(None)


def until_killed(work: Callable[[], None]) -> None:
    """Do `work` in a forked child, which is killed in the middle of it.

    Raises `RuntimeError` if the child ended otherwise. What the child changed in memory is gone with it, as with a
    worker; files and databases keep it. Blocks.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # From Python 3.12 on a fork beside other threads warns; the child touches nothing of theirs and ends by _exit.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        raise RuntimeError("the record at which the worker was to be killed never came to the handler")
    raise RuntimeError(f"the worker ended by itself, before it was to be killed (wait status {status}); see its stderr")
