"""How many records a worker has in hand at a time. Pure."""

from __future__ import annotations

from kunicorn.errors import ConfigError

ASYNC_CONCURRENCY = 100
"""Of an `async def` handler where handler.concurrency is not set."""


def concurrency_of(is_async: bool, mode: str, ordering: str, concurrency: int | None) -> int:
    """Most records in hand at a time. With 1 a worker handles one after the other. Raises `ConfigError`."""
    if mode == "batch":
        return 1
    most = concurrency if concurrency is not None else ASYNC_CONCURRENCY if is_async else 1
    if most == 1 and ordering != "partition":
        raise ConfigError(
            f"handler.ordering = {ordering!r}, but the handler is a plain function, of which one call runs at a time: "
            f"set handler.concurrency to the number of threads, make it async def, or remove handler.ordering"
        )
    return most
