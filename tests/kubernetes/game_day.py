"""`make game-day`: faults put into a running release one after the other; what pages, and whether runbooks heal it.

The alert rules are those that the chart renders, at their own clock, in a real Prometheus that scrapes the pods through
the API server. A script is called when an alert fires, and does what `runbook.py` has of its page. It is not told what
was done, nor in which order.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from kunicorn.commands.demo.judge import Audit
from tests.deploy.prometheus import Prometheus
from tests.deploy.tools import tools
from tests.kubernetes import game_page
from tests.kubernetes.brokers import SecuredBrokers
from tests.kubernetes.cluster import Refused
from tests.kubernetes.credentials import installed_with_login
from tests.kubernetes.mishaps import MISHAPS, Day
from tests.kubernetes.options import conditions, played, tell
from tests.kubernetes.release import Release
from tests.kubernetes.runbook import RUNBOOK
from tests.kubernetes.scene import PARTITIONS, Given, Scene
from tests.system.producing import end_offsets
from tests.waiting import wait_until

SCRAPE_EVERY, LOOKBACK = 15, 300
OVERRIDES: Mapping[str, Mapping[str, str]] = {
    "KunicornHandlerStuck": {
        "expr": 'max by (namespace, pod, instance, group) (kunicorn_inflight_oldest_seconds{release="RELEASE"}) > 60',
        "for": "15s",
    },
    "KunicornLagHigh": {
        "expr": 'max by (namespace, job, group, topic) (kafka_consumer_lag_seconds{release="RELEASE"}) > 30',
        "for": "30s",
    },
}
"""`prometheusRule.overrides` of a release whose handlers take 20 ms: the chart's own limits suit calls of minutes."""
PAGED_WITHIN, HEALED_WITHIN = 900.0, 600.0
"""Seconds that a fault is waited for to page, and a runbook to heal."""


def main() -> int:
    """0 where every fault that was played has paged and was healed without a loss."""
    return played(MISHAPS, __doc__, "game-day", _all)


def _all(options: argparse.Namespace, what: Given, directory: Path) -> bool:
    names = list(options.only or MISHAPS)
    random.shuffle(names)
    ours: list[dict[str, Any]] = []
    for name in names:
        where = conditions(what.cluster, options)
        ours.append({**_one(what, name, directory), "commit": where["commit"]})
        tell(f"  {ours[-1]}")
        if options.write:
            # Read anew each time: another run may have written meanwhile.
            kept = {each["mishap"]: each for each in (*game_page.recorded()["mishaps"], ours[-1])}
            game_page.write({"conditions": where, "mishaps": [kept[each] for each in MISHAPS if each in kept]})
    return all(map(held, ours))


def held(played: Mapping[str, Any]) -> bool:
    """Whether it paged in time and was healed without a loss."""
    in_time = min(played["paged"].values(), default=PAGED_WITHIN) <= game_page.IN_TIME
    return in_time and played["healed"] is not None and not played["lost"]


def _one(what: Given, name: str, directory: Path) -> dict[str, Any]:
    """One fault, in a release of its own, so that what one has left behind does not page for the next."""
    workdir = directory / f"brokers-{name}"
    workdir.mkdir()
    with (
        SecuredBrokers(workdir, what.host) as brokers,
        Scene(replace(what, brokers=brokers), f"day-{name}", directory) as scene,
    ):
        day = _begun(scene, brokers)
        with Prometheus(tools(), scene.directory, rules(day.release), SCRAPE_EVERY, LOOKBACK) as prometheus:
            _scrape(day.release, prometheus)
            return _called(day, name, prometheus)


def _begun(scene: Scene, brokers: SecuredBrokers) -> Day:
    return Day(scene, installed_with_login(scene, brokers), brokers)


def rules(release: Release) -> str:
    """Those that the chart makes for this release."""
    file = release.directory / "rules.json"
    watched = {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True, "overrides": OVERRIDES}}
    file.write_text(json.dumps({**release.values, **watched}))
    only = ["--show-only", "templates/prometheusrule.yaml", "--api-versions", "monitoring.coreos.com/v1"]
    common = ["--namespace", release.namespace, "-f", str(file)]
    rendered = release.cluster.helm("template", release.name, str(release.chart), *common, *only)
    return json.dumps({"groups": yaml.safe_load(rendered)["spec"]["groups"]})


def _scrape(release: Release, prometheus: Prometheus) -> None:
    """The pods that there are now; one that is gone is gone from the list, as the operator's discovery does it."""
    prometheus.scrape_labelled(
        [
            {
                "targets": [release.cluster.proxy.removeprefix("http://")],
                "labels": {
                    "__metrics_path__": f"/api/v1/namespaces/{release.namespace}/pods/{pod}:9400/proxy/metrics",
                    "instance": pod,
                    "pod": pod,
                    "namespace": release.namespace,
                    "job": f"{release.namespace}/{release.full_name}",
                    "release": release.full_name,
                },
            }
            for pod in release.names()
        ]
    )


def _called(day: Day, name: str, prometheus: Prometheus) -> dict[str, Any]:
    """From the fault until all is well, or until nobody knows what to do."""
    # Two scrapes, so that counters have something to grow from.
    day.scene.wait_handled_on(SCRAPE_EVERY * 2 * 60)
    MISHAPS[name].inflict(day)
    began = time.monotonic()
    tell("something has happened")
    paged: dict[str, float] = {}
    followed: list[str] = []
    healed: float | None = None

    def settled() -> bool:
        nonlocal healed
        _scrape(day.release, prometheus)
        for alert in sorted(prometheus.firing() - paged.keys()):
            paged[alert] = round(time.monotonic() - began, 0)
            tell(f"  {alert} after {paged[alert]:.0f} s")
        before = len(followed)
        _follow(day, paged, followed)
        if len(followed) > before:
            # It may have looked well for a moment, between two deaths.
            healed = None
        healed = (healed or time.monotonic() - began) if _whole(day) else None
        return healed is not None and (bool(paged) or time.monotonic() - began > healed + PAGED_WITHIN / 5)

    try:
        wait_until(settled, "a page and its end", PAGED_WITHIN + HEALED_WITHIN, 2)
    except AssertionError as error:
        tell(f"  {error}\n{day.release.told()[-3000:]}")
        return _result(day, name, paged, followed, None)
    return _result(day, name, paged, followed, healed)


def _follow(day: Day, paged: Mapping[str, float], followed: list[str]) -> None:
    """Each step of a page once that there is something to do for it."""
    for alert in paged:
        for step in RUNBOOK.get(alert, ()):
            told = f"{alert}: {step.words}"
            if told in followed:
                continue
            try:
                if step.act(day):
                    followed.append(told)
                    tell(f"    followed: {told}")
            except Refused as error:
                tell(f"    could not follow {told}: {str(error)[-300:]}")


def _whole(day: Day) -> bool:
    """All partitions run, and nothing waits for longer than a few seconds."""
    if not day.brokers.broker(1).alive or day.frozen or day.release.partitions() != PARTITIONS:
        return False
    lags = [
        partition["lag_seconds"] or 0
        for pod in day.release.names()
        for partition in day.release.status(pod).get("partitions", [])
    ]
    return len(lags) == PARTITIONS and max(lags) < 10


def _result(
    day: Day, name: str, paged: Mapping[str, float], followed: list[str], healed: float | None
) -> dict[str, Any]:
    lost = -1
    if healed is not None:
        day.scene.load.stop()
        day.scene.wait_committed()
        ends = end_offsets(day.brokers.bootstrap, day.scene.topic, PARTITIONS)
        there = {tp: range(day.excused.get(tp.partition, 0), end) for tp, end in ends.items()}
        lost = len(Audit(day.scene.audit).check(there, day.scene.killed).lost)
    return {
        "mishap": name,
        "paged": dict(paged),
        "followed": followed,
        "healed": round(healed, 0) if healed is not None else None,
        "lost": lost,
    }


if __name__ == "__main__":
    sys.exit(main())
