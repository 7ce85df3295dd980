"""A real Prometheus over real members; with hurried rules at a clock of its own, where a minute is a second."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.deploy.charts import CHART
from tests.deploy.tools import Tools
from tests.kafka.ports import kept_port
from tests.waiting import wait_until

_CONFIG = """
global: {{scrape_interval: {every}s, scrape_timeout: {timeout}s, evaluation_interval: {every}s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: members
    file_sd_configs: [{{files: [{targets}], refresh_interval: 1s}}]
"""

SELECTED = 'release="RELEASE"'
"""What stands in the rules for the series of one release."""
_SLOWEST_SCRAPE = 10
"""Seconds; Prometheus' own default."""


def rules_of(group: str) -> str:
    """The chart's rules for a group of this machine, where members have no namespace."""
    return (CHART / "alerts" / "rules.yaml").read_text().replace(SELECTED, f'group="{group}"')


def hurried(rules: str, thresholds: Mapping[str, str]) -> str:
    """The rules with seconds for minutes, and limits to match; each must be there."""
    for limit, lower in thresholds.items():
        assert limit in rules, limit
        rules = rules.replace(limit, lower)
    return re.sub(r"\b(\d+)m\b", r"\1s", rules)


class Prometheus:
    """Scrapes `ports` of this machine and goes by its rules every `every` seconds; a series without samples is over
    after `lookback` seconds. Data and log in `directory`."""

    def __init__(self, tools: Tools, directory: Path, rules: str, every: int = 1, lookback: int = 5) -> None:
        self._tools, self._directory, self._lookback, self._every = tools, directory, lookback, every
        self._targets = directory / "targets.json"
        self._port = kept_port()
        (directory / "rules.yaml").write_text(rules)
        (directory / "prometheus.yaml").write_text(
            _CONFIG.format(
                rules=directory / "rules.yaml", targets=self._targets, every=every, timeout=min(every, _SLOWEST_SCRAPE)
            )
        )

    def __enter__(self) -> Prometheus:
        """Start it, and wait until it answers."""
        self.scrape([])
        self._log = (self._directory / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                self._tools.command("prometheus"),
                f"--config.file={self._directory / 'prometheus.yaml'}",
                f"--storage.tsdb.path={self._directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
                f"--query.lookback-delta={self._lookback}s",
            ],
            stdout=self._log,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
        )
        wait_until(self._answers, "Prometheus to answer", every=0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(60)
        self._log.close()

    def scrape(self, ports: Sequence[int]) -> None:
        """From now on these."""
        self.scrape_labelled([{"targets": [f"127.0.0.1:{port}" for port in ports]}])

    def scrape_labelled(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """From now on these: groups of targets with labels, as `file_sd_configs` has them."""
        scratch = self._targets.with_suffix(".new")
        scratch.write_text(json.dumps(groups))
        scratch.rename(self._targets)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query. Raises `AssertionError` with Prometheus' words for one that is wrong."""
        url = f"http://127.0.0.1:{self._port}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return found
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None

    def firing(self, within: str = "") -> set[str]:
        """Names of alerts that fire; with `within`, such as "30s", those that have in that time."""
        return self._in_state("firing", within)

    def pending(self, within: str) -> set[str]:
        """Names of alerts whose condition was true in that time, if not for long enough."""
        return self._in_state("pending", within)

    def _in_state(self, state: str, within: str) -> set[str]:
        # An alert has a sample at each evaluation, and none between: a shorter look would see most of them too late.
        found = self.query(f'max_over_time(ALERTS{{alertstate="{state}"}}[{within or f"{2 * self._every}s"}])')
        return {sample["metric"]["alertname"] for sample in found}

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            assert self._process.poll() is None, (self._directory / "prometheus.log").read_text()[-2000:]
            return False
