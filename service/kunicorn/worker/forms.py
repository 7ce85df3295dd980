"""How a worker calls its handlers: with one record (or batch) at a time or with several, and with outputs sent."""

from __future__ import annotations

from collections.abc import Callable

from kunicorn.handlers import Handler
from kunicorn.handling.calls import Calls, arguments_of, calls_for
from kunicorn.handling.concurrency import concurrency_of
from kunicorn.pipes.messages import HandlerOrder
from kunicorn.worker.producing import Outputs
from kunicorn.worker.tasks import Tasks
from kunicorn.worker.threads import Threads

Form = Calls | Threads | Tasks


def form_in_worker(*, several_handlers: bool, outputs: Outputs | None) -> Callable[[Handler, HandlerOrder], Form]:
    """How each handler is called; what that gives raises `ConfigError` and `HandlerLoadError`.

    Several handlers have one record (or batch) in hand at a time between them, and so has one whose outputs are sent:
    the settings say so.
    """
    if outputs is not None:
        return outputs.calls
    return calls_for if several_handlers else _form_of_one


def concurrency(handler: Handler, order: HandlerOrder) -> int:
    """How many records it has in hand at a time. Raises `ConfigError`."""
    return concurrency_of(handler.is_async, order.mode, order.ordering, order.concurrency)


def _form_of_one(handler: Handler, order: HandlerOrder) -> Form:
    most = concurrency(handler, order)
    if most == 1:
        return calls_for(handler, order)
    form = arguments_of(handler, order.mode, order.decoding, order.tracing)
    handle = form.adapted(handler.call)
    return Tasks(handle, form) if handler.is_async else Threads(handle, form, most)
