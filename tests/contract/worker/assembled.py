"""A worker as it is put together today. The only file here that knows its modules: every other one sees what any worker
of ours has, a pipe, a ledger, clients and a handler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from kunicorn.ipc.ledger import CONSUMED, GRANT, Ledger
from kunicorn.ipc.messages import Configure, FromWorker, ToWorker
from kunicorn.worker import control as control_module
from kunicorn.worker.assembly import CannotServe, Makers, assemble
from kunicorn.worker.control import Control
from tests.contract.worker.stepping import STEPS
from tests.contract.worker.substitutes import in_force

_LINE = Ledger.index(1) - Ledger.index(0)
_BEFORE = Ledger.index(0) // _LINE

Refused = CannotServe
"""What `live` raises where the worker cannot be what it is told."""


class Pipe(Protocol):
    """The worker's end of it."""

    def receive(self, timeout: float | None = None) -> ToWorker | None:
        """The next message."""

    def send(self, message: FromWorker) -> None:
        """To the supervisor."""


class _Seen:
    """Memory of which each store is told."""

    def __init__(self, memory: memoryview, storing: Callable[[Any], None], stored: Callable[[Any], None]) -> None:
        self._memory, self._storing, self._stored = memory, storing, stored

    def __getitem__(self, at: Any) -> Any:
        return self._memory[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        STEPS.check()
        self._storing(at)
        self._memory[at] = value
        self._stored(at)


def watched(
    ledger: Ledger, storing: Callable[[int], None], moved: Callable[[int], None], marked: Callable[[int], None]
) -> Ledger:
    """The ledger as a worker has it. `storing` is called with the index of a word before each store into it, `moved`
    with a slot whose grant or consumed offset was stored, `marked` with the first byte behind the slots' lines that
    was: after each store, before the next thing happens."""

    behind = Ledger.index(ledger.slots)

    def stored(at: int) -> None:
        if at < behind and at % _LINE in (CONSUMED, GRANT):
            moved(at // _LINE - _BEFORE)
        STEPS.tick()

    def stored_bytes(at: int | slice) -> None:
        marked(at.start if isinstance(at, slice) else at)
        STEPS.tick()

    theirs = Ledger(ledger.fd)
    theirs.cells = _Seen(theirs.cells, storing, stored)  # type: ignore[assignment]
    theirs._bytes = _Seen(theirs._bytes, lambda at: None, stored_bytes)  # type: ignore[assignment]
    return theirs


def clear(ledger: Ledger) -> None:
    """Make it a new one: the memory is all zeroes."""
    ledger._bytes[:] = bytes(len(ledger._bytes))


class _Nothing:
    """In the place of what looks at the process."""

    def bytes(self) -> int:
        """Resident memory."""
        return 0

    def news(self) -> tuple[None, None]:
        """Metrics."""
        return None, None

    last = news


def live(configure: Configure, ledger: Ledger, pipe: Pipe, source: Any, producer: Callable[[bool], Any]) -> None:
    """Be that worker until it is drained. Caller: the main thread of a story. `source`: what is in the place of the
    consumer, or of our own fetcher. `producer` makes one, with transactions or without."""
    makers = Makers(
        consumer=lambda properties, logger: source,
        own_fetcher=lambda properties, login: source.client(),
        producer=lambda properties, logger: producer("transactional.id" in properties),
    )
    made = assemble(configure, ledger, pipe.send, makers)
    STEPS.on_signal = made.runner.on_interruption
    control = Control(pipe, ledger, made, lambda: 0, _Nothing())  # type: ignore[arg-type]
    STEPS.spawn("control", control.run)
    made.runner.run()
    made.hooks.finish()
    control.say_last()


@contextmanager
def on_stage() -> Iterator[None]:
    """While it lasts, whatever a worker does in this process is stepped."""
    module: Any = control_module
    before = module.ResidentMemory
    with in_force("kunicorn."):
        module.ResidentMemory = _Nothing
        try:
            yield
        finally:
            module.ResidentMemory = before
