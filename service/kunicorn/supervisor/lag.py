"""How far behind we are, asked of the brokers: a worker's cached watermark freezes exactly when it matters."""

from __future__ import annotations

import asyncio
import time

from kunicorn.errors import PeerError
from kunicorn.observe import logs
from kunicorn.supervisor.fetchers import Fetchers
from kunicorn.supervisor.starts import LATEST, Offsets

log = logs.get("kunicorn.lag")

INTERVAL = 10.0
_UNSETTLED_INTERVAL = 1.0
"""While a partition's end is not known yet: a newcomer's lag should not be blank for long."""


async def watch(offsets: Offsets, fetchers: Fetchers) -> None:
    """Keep every partition's log end current, for ever. One that cannot be had becomes unknown, not stale."""
    while True:
        await ask(offsets, fetchers)
        known = fetchers.table and all(partition.log_end is not None for partition in fetchers.table.values())
        await asyncio.sleep(INTERVAL if known else _UNSETTLED_INTERVAL)


async def ask(offsets: Offsets, fetchers: Fetchers) -> None:
    """Have the ends of all partitions' logs, once. What cannot be had becomes unknown."""
    wanted = dict.fromkeys(fetchers.table, LATEST)
    asked_ms = time.time_ns() // 1_000_000
    try:
        answer = await offsets.list_offsets(wanted) if wanted else {}
    except PeerError as error:
        log.info(f"log ends are not known: {error}")
        answer = {}
    for tp in wanted:
        partition, found = fetchers.table.get(tp), answer.get(tp)
        if partition is not None:
            partition.end_seen(found.offset if found is not None and not found.error else None, asked_ms)
