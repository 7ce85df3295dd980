"""A group is whole when it has caught up, and its load goes on: the next fault comes under load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import cast

import pytest

from tests.chaos.crowds import CROWDS, ONE
from tests.chaos.group import BEHIND, PARTITIONS, Group, now, terms
from tests.chaos.offsets import Offsets
from tests.kafka import ProxiedCluster


class NoBrokers:
    """What a group without members asks its brokers for."""

    bootstrap = "127.0.0.1:1"

    def create_topic(self, *_: object) -> None:
        pass

    def heal(self, *_: object) -> None:
        pass


class Busy:
    """The audit of workers that handle 100 records of each partition from one look at it to the next; twice another
    300 are appended meanwhile."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.looks = 0

    def read(self) -> None:
        self.looks += 1
        for partition in range(PARTITIONS if self.looks <= 2 else 0):
            confirm(self.group, partition, 300, now())

    def ended(self, partition: int, load: int) -> Offsets:
        handled = Offsets()
        for offset in range(100 * self.looks):
            handled.add(offset)
        return handled


def confirm(group: Group, partition: int, records: int, at: int) -> None:
    times = group.load.appended[partition]
    for _ in range(records):
        times.confirm(len(times), at)


def test_whoever_waits_for_a_whole_group_waits_for_its_load_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = replace(terms("range"), crowd=CROWDS[ONE]._replace(rate=60))
    group = Group(cast(ProxiedCluster, NoBrokers()), "orders", False, Random(1), tmp_path / "group", slow)
    audit = Busy(group)
    monkeypatch.setattr(group, "audit", audit)
    monkeypatch.setattr(group, "_shared_out", lambda: True)
    for partition in range(PARTITIONS):
        confirm(group, partition, 10, 0)
    group.wait_whole()
    # The 310 records that the call waits for are handled at the fourth look; 2,520 others wait by then.
    assert audit.looks > 4
    assert not group.load.is_held
    assert group.unhandled(0, 610) * PARTITIONS < BEHIND * group.terms.crowd.rate / 2
