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
        unsettled = any(partition.log_end is None for partition in fetchers.table.values()) or not wanted
        await asyncio.sleep(_UNSETTLED_INTERVAL if unsettled else INTERVAL)
