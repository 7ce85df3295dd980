"""How long a record is on its way from being sent to the handler, at a steady rate."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from bench.peers.contenders import Contender, Setting
from bench.peers.run import Failed, running
from bench.peers.tallies import findings
from kunicorn.demo.processes import python_module, python_path, start_child

RATE = 1000
WARM_SECONDS = 3.0
"""So long after the first record delays do not count: connections and the rebalance's end are in them."""


class Delays(NamedTuple):
    """Milliseconds."""

    p50: float
    p99: float
    p999: float
    finding: str


def measure(who: Contender, setting: Setting, produced: Sequence[int]) -> Delays:
    """Send and handle; the topic is empty at first. Blocks; raises `Failed`, `Unavailable`."""
    arguments = (setting.bootstrap, setting.topic, str(setting.partitions), str(RATE), str(setting.records))
    with running(who, setting) as contender:
        log = setting.directory / "sender.txt"
        sender = start_child(python_module("bench.peers.sender", *arguments), env=python_path(), log=log)
        try:
            contender.await_first()
            until = time.monotonic() + setting.records / RATE + 30
            while contender.total < setting.records and time.monotonic() < until:
                time.sleep(0.1)
        finally:
            sender.kill()
            sender.wait(10)
    found = sorted(contender.tallies.delays())
    if len(found) < setting.records:
        raise Failed(f"{len(found):,} of {setting.records:,} records came: {contender.last_line()}")
    begin = found[0][0] + found[0][1] + WARM_SECONDS * 1e9
    ranked = sorted(delay / 1e6 for sent, delay in found if sent >= begin)
    if not ranked:
        raise Failed("all records came with the first")
    finding = findings(contender.tallies.counted(), produced)
    p50, p99, p999 = (_percentile(ranked, share) for share in (0.5, 0.99, 0.999))
    return Delays(p50, p99, p999, finding)


def _percentile(ranked: Sequence[float], share: float) -> float:
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))]
