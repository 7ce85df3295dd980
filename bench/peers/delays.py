"""How long a record is on its way from being sent to the handler, at a steady rate.

A bare `poll()` loop has the same records at the same time: what else happens on the machine holds both up.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from bench.peers.contenders import BARE_POLL, Contender, Setting
from bench.peers.run import Failed, Running, running, scratch
from bench.peers.sender import send
from bench.peers.tallies import findings
from kunicorn.commands.child import python_module, python_path, start_child

RATE = 1000
WARM_SECONDS = 2.0
"""So long after the first of the steady records delays do not count."""


class Delays(NamedTuple):
    """Milliseconds; `poll_` are those of the bare loop beside it."""

    p50: float
    p99: float
    p999: float
    poll_p50: float
    poll_p99: float
    poll_p999: float
    finding: str


def measure(who: Contender, setting: Setting, produced: Sequence[int]) -> Delays:
    """One record for each partition, and as soon as those are handled the others at a steady rate: joining the group
    is not what is measured. The topic is empty at first. Blocks; raises `Failed`, `Unavailable`."""
    with scratch() as directory, running(who, setting) as contender:
        beside = setting._replace(group=f"{setting.group}-poll", directory=directory)
        with running(BARE_POLL, beside) as poll:
            both = contender, poll
            _send_and_await(both, setting)
            ours, theirs = (_percentiles(each, setting) for each in both)
            return Delays(*ours, *theirs, findings(contender.tallies.counted(), produced))


def _send_and_await(both: Sequence[Running], setting: Setting) -> None:
    arguments = (setting.bootstrap, setting.topic, str(setting.partitions), str(RATE))
    send(setting.bootstrap, setting.topic, setting.partitions, 1e6, setting.partitions)
    for each in both:
        each.await_first(setting.partitions)
    log = setting.directory / "sender.txt"
    more = str(setting.records - setting.partitions)
    sender = start_child(python_module("bench.peers.sender", *arguments, more), env=python_path(), log=log)
    try:
        until = time.monotonic() + setting.records / RATE + 30
        while any(each.total < setting.records for each in both) and time.monotonic() < until:
            time.sleep(0.1)
    finally:
        sender.kill()
        sender.wait(10)


def _percentiles(contender: Running, setting: Setting) -> tuple[float, float, float]:
    found = sorted(contender.tallies.delays())
    if len(found) < setting.records:
        raise Failed(f"{len(found):,} of {setting.records:,} records came: {contender.last_line()}")
    begin = found[setting.partitions][0] + WARM_SECONDS * 1e9
    ranked = sorted(delay / 1e6 for sent, delay in found if sent >= begin)
    return _percentile(ranked, 0.5), _percentile(ranked, 0.99), _percentile(ranked, 0.999)


def _percentile(ranked: Sequence[float], share: float) -> float:
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))]
