"""Snapshots of a service in which all is well, to be changed by tests with `dataclasses.replace`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kunicorn.observe.status import (
    AssignStatus,
    CommitStatus,
    GroupStatus,
    PartitionStatus,
    RebalanceStatus,
    Status,
    WorkerStatus,
)


def partition(number: int, topic: str = "orders", **changes: Any) -> PartitionStatus:
    """A running partition with ten records of lag."""
    running = PartitionStatus(
        topic=topic,
        partition=number,
        state="running",
        reason=None,
        since=5.0,
        worker=0,
        grant=1,
        position=90,
        committed=80,
        log_end=100,
        lag=10,
        lag_seconds=1.5,
        in_hand=None,
        in_hand_age=None,
    )
    return replace(running, **changes)


def worker(number: int = 0, **changes: Any) -> WorkerStatus:
    """A worker that has just reported."""
    ready = WorkerStatus(
        worker=number,
        pid=1000 + number,
        state="ready",
        revision=1,
        predecessor=None,
        predecessor_pong_age=None,
        partitions=2,
        handled=500,
        restarts=0,
        rss_bytes=50_000_000,
        in_hand=None,
        in_hand_age=None,
        runner_age=0.2,
        pong_age=0.2,
        paused_by_lease=False,
        last_exit=None,
    )
    return replace(ready, **changes)


def group(**changes: Any) -> GroupStatus:
    """A stable member."""
    stable = GroupStatus(
        group_id="shop",
        protocol="classic",
        state="stable",
        member_id="m-1",
        instance_id=None,
        generation=7,
        leader=True,
        assignor="cooperative-sticky",
        coordinator="1 at 127.0.0.1:9092",
        joined=True,
        heartbeat_age=0.4,
        lease_left=44.0,
        session_timeout=45.0,
        rebalances=2,
        last_rebalances=(
            RebalanceStatus(6, "joining", "completed", 3.0, 60.0),
            RebalanceStatus(7, "a member joined", "completed", 1.0, 20.0),
        ),
    )
    return replace(stable, **changes)


def status(**changes: Any) -> Status:
    """One worker with two partitions."""
    well = Status(
        version="1.2.3",
        client_id="kunicorn",
        pid=1,
        uptime=100.0,
        stopping=False,
        loop_lag=0.001,
        brokers_reached=True,
        problem=None,
        outage=None,
        template="ready",
        reload=None,
        group_id="shop",
        group=group(),
        assign=None,
        commit=CommitStatus(last_age=2.0, last_result="ok", pending=False),
        workers=(worker(),),
        partitions=(partition(0), partition(1)),
        settings={"http": {"port": 9400}},
    )
    return replace(well, **changes)


def assigned(**changes: Any) -> Status:
    """A service without a group, all of whose partitions are fetched."""
    assign = AssignStatus(stop="never", partitions=2, finished=0, fetched=True)
    return status(**{"group": None, "commit": None, "assign": assign, **changes})
