"""How a worker calls its handlers: with one record (or batch) at a time or with several, and with outputs sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kunicorn.handlers import Handler
from kunicorn.handling.calls import Calls, arguments_of, calls_for
from kunicorn.handling.concurrency import concurrency_of
from kunicorn.handling.outputs import gathering
from kunicorn.handling.returns import Heed
from kunicorn.pipes.orders import HandlerOrder
from kunicorn.worker.crew import Take
from kunicorn.worker.producing import Outputs
from kunicorn.worker.tasks import Tasks
from kunicorn.worker.threads import Threads

Form = Calls | Threads | Tasks


def form_in_worker(orders: Sequence[HandlerOrder], outputs: Outputs | None) -> Callable[[Handler, HandlerOrder], Form]:
    """How each of the handlers is called; what that gives raises `ConfigError` and `HandlerLoadError`.

    Several handlers, and those whose outputs are sent, have one record (or batch) in hand at a time between them where
    the settings ask for nothing else.
    """
    if any(order.asks_for_several for order in orders):
        return lambda handler, order: _crew(handler, order, outputs)
    if outputs is not None:
        return outputs.calls
    return calls_for if len(orders) > 1 else _form_of_one


def concurrency(handler: Handler, order: HandlerOrder) -> int:
    """How many records it has in hand at a time. Raises `ConfigError`."""
    return concurrency_of(handler.is_async, order.mode, order.ordering, order.concurrency)


def _form_of_one(handler: Handler, order: HandlerOrder) -> Form:
    return calls_for(handler, order) if concurrency(handler, order) == 1 else _crew(handler, order, None)


def _crew(handler: Handler, order: HandlerOrder, outputs: Outputs | None) -> Threads | Tasks:
    most = concurrency(handler, order)
    form = arguments_of(handler, order.mode, order.decoding, order.tracing)
    adapted = replace(handler, call=form.adapted(handler.call))
    take = _heeding(handler) if outputs is None else outputs.take(handler)
    handle = adapted.call if outputs is None else gathering(adapted).call
    return Tasks(handle, form, take) if handler.is_async else Threads(handle, form, most, take)


def _heeding(handler: Handler) -> Take:
    heed = Heed(handler.entrypoint)
    return lambda flight, returned: heed(returned)
