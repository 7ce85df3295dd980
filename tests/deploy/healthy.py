"""`make healthy-hour`: the alert rules as they are shipped, at their own clock, over a healthy group with steady load.

The group is restarted twice, a member at a time, as a rollout does it: a new one first, then the old one stops. No
alert may fire. What was pending is told: a rule that nearly fired is worth a look.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.deploy.prometheus import Prometheus, rules_of
from tests.deploy.tools import tools
from tests.kafka import KafkaCluster
from tests.system.members import MemberProcess, Members, group_settings, merged
from tests.system.producing import Flow
from tests.waiting import wait_until

GROUP = "orders"
PARTITIONS, MEMBERS, RATE = 12, 3, 60
SETTINGS: dict[str, dict[str, Any]] = {"log": {"level": "info"}, "group": {"heartbeat_interval_ms": 1000}}
"""The default; tests' members beat faster."""
SCRAPE_EVERY, LOOKBACK = 30, 300
"""Seconds: the chart's interval of scrapes, and Prometheus' default."""
ROLLOUTS_AT = (0.4, 0.7)
"""Parts of the whole time."""


def main() -> int:
    """0 where no alert fired, 1 where one did."""
    minutes = _options().minutes
    with tempfile.TemporaryDirectory(prefix="kunicorn-healthy-") as scratch, KafkaCluster() as kafka:
        kafka.create_topic(GROUP, PARTITIONS)
        members = Members(Path(scratch), merged(group_settings(kafka.bootstrap, [GROUP], GROUP), SETTINGS), {})
        try:
            return watch(Path(scratch), kafka.bootstrap, members, minutes * 60)
        finally:
            members.close()


def watch(directory: Path, bootstrap: str, members: Members, seconds: float) -> int:
    """Run the group for that long below Prometheus' eyes; the exit code."""
    rules = rules_of(GROUP)
    running = _shared_out([members.start() for _ in range(MEMBERS)])
    with (
        Prometheus(tools(), directory, rules, SCRAPE_EVERY, LOOKBACK) as prometheus,
        Flow(bootstrap, GROUP, RATE) as flow,
    ):
        _scraped(prometheus, running)
        began = time.monotonic()
        for part in (*ROLLOUTS_AT, 1.0):
            _quiet(prometheus, began + part * seconds)
            if part < 1.0:
                running = _rolled_out(members, running, prometheus)
        fired, pending = (ask(f"{int(seconds)}s") for ask in (prometheus.firing, prometheus.pending))
        seen = len(prometheus.query(f"count_over_time(up[{int(seconds)}s]) > 0"))
    codes = [member.stop() for member in running]
    tell(f"{seconds / 60:g} minutes, {flow.sent} records, {seen} members scraped, exit codes at the end {codes}")
    tell(f"fired: {sorted(fired) or 'nothing'}; pending at some time: {sorted(pending) or 'nothing'}")
    return 1 if fired or any(codes) or seen != MEMBERS * (len(ROLLOUTS_AT) + 1) else 0


def _quiet(prometheus: Prometheus, until: float) -> None:
    """Wait, and tell of an alert as soon as it fires: the state it fires in is then still there to be looked at."""
    told: set[str] = set()

    def over() -> bool:
        nonlocal told
        firing = prometheus.firing(within=f"{2 * SCRAPE_EVERY}s")
        if firing - told:
            tell(f"fires: {prometheus.query('ALERTS')}")
        told = firing
        return time.monotonic() >= until

    wait_until(over, "the end", until - time.monotonic() + 60, every=SCRAPE_EVERY)


def _rolled_out(members: Members, running: Sequence[MemberProcess], prometheus: Prometheus) -> list[MemberProcess]:
    """New members for old ones, one by one."""
    current = list(running)
    for old in running:
        current = _shared_out([*current, members.start()])
        current.remove(old)
        code = old.stop()
        _shared_out(current)
        _scraped(prometheus, current)
        tell(f"{old.name} was replaced by {current[-1].name} and ended with exit code {code}")
    return current


def _shared_out(running: list[MemberProcess]) -> list[MemberProcess]:
    """Wait until these handle every partition between them, each some of them."""

    def shared() -> bool:
        counts = [len(member.partitions("running")) for member in running]
        return all(counts) and sum(counts) == PARTITIONS

    wait_until(shared, f"{PARTITIONS} partitions with {len(running)} members", 120, 0.5)
    return running


def _scraped(prometheus: Prometheus, running: Sequence[MemberProcess]) -> None:
    """Wait until Prometheus has seen each of these; a rollout waits for probes, too."""
    prometheus.scrape([member.port for member in running])
    wait_until(lambda: len(prometheus.query("up == 1")) == len(running), "a scrape of each", 4 * SCRAPE_EVERY, 1)


def tell(line: str) -> None:
    """To whoever watches the run."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.deploy.healthy", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long to watch (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
