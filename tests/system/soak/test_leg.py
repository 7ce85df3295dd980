"""A short leg of `make soak`, of one group and few faults, from its brokers to its figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType

from tests.chaos.group import FETCHERS, PARTITIONS
from tests.soak.faults import QUIET, unavailable
from tests.soak.figures import started
from tests.soak.peers import VERSIONS
from tests.soak.plan import PEERS_AT, Leg, Shape
from tests.soak.run import cluster, run
from tests.soak.terms import rate

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

SHAPES = (
    (Shape("cooperative-sticky", False, "batch", "none", "librdkafka", "PLAINTEXT"), ("kill-worker", "scale-out")),
    (Shape("range", True, "keys", "transactions", "own", "SASL_SSL"), ("retention", "rolling-static")),
    (Shape("consumer", False, "arrow", "database", "own", "SSL"), ("move-leaders", "reload")),
    (Shape("cooperative-sticky", True, "batch", "none", "own", "SSL"), ("retention-by-time", "step-clock")),
    (Shape("consumer", False, "keys", "transactions", "librdkafka", "PLAINTEXT"), ("unclean-election", "scale-out")),
    (Shape("cooperative-sticky", False, "arrow", "at least once", "own", "PLAINTEXT"), ("recreate-topic",)),
    (Shape("range", False, "batch", "none", "librdkafka", "SASL_SSL"), ("upgrade-members", "upgrade-brokers")),
)
"""If a fault has not happened, that is told as a promise that did not hold: none can pass by standing by."""


@pytest.mark.parametrize(("shape", "faults"), SHAPES, ids=lambda each: str(each)[:40])
def test_a_leg_accounts_for_every_record(shape: Shape, faults: tuple[str, ...], tmp_path: Path) -> None:
    if reasons := list(filter(None, map(unavailable, faults))):
        pytest.skip("; ".join(reasons))
    leg = Leg(0, 1, shape, faults)  # Number 0 would last an hour.
    figures = run(leg, started(leg, dict.fromkeys(FETCHERS, "none"), "none", rate(shape)), tmp_path / "leg", print)
    assert figures.complaints == []
    assert [each.fault for each in figures.faults] == ["quiet", *faults]
    assert figures.records > 10_000
    assert figures.lost == figures.twice_in_order == 0
    assert (figures.outputs > 0) == (shape.delivery != "none")
    assert not (tmp_path / "leg").exists(), "of a leg in which every promise held only the figures are kept"


@pytest.mark.parametrize(
    "shape",
    [
        Shape("cooperative-sticky", False, "batch", "none", "librdkafka", "SASL_SSL"),
        Shape("consumer", True, "record", "none", "own", "SSL"),
    ],
    ids=lambda each: each.protocol,
)
def test_groups_of_other_clients_meet_the_same_faults(shape: Shape, tmp_path: Path) -> None:
    kinds = ("poison", "rolling-static") if shape.is_lethal else ("scale-out", "rolling-restart")
    leg = Leg(0, PEERS_AT, shape, ("kill-worker", "cut-briefly", *kinds, "kill-coordinator"))
    figures = run(leg, started(leg, dict.fromkeys(FETCHERS, "none"), "none", rate(shape)), tmp_path / "leg", print)
    assert figures.complaints == []
    assert sorted(figures.peers) == sorted(f"{client} {version}" for client, version in VERSIONS.items())
    met = [QUIET, *(name for name in leg.faults if name != "poison")]
    for faults in figures.peers.values():
        assert [each.fault for each in faults] == met, "poison means nothing to clients without a supervisor"
        assert all(not each.broken and len(each.pauses_ms) == PARTITIONS for each in faults), faults
        pauses = {each.fault: max(each.pauses_ms) for each in faults}
        assert pauses["cut-briefly"] > 1_000 * shape.session / 4, "its first member was not cut off"


def test_brokers_compute_a_groups_assignment_as_seldom_as_kafka_ships(tmp_path: Path) -> None:
    with cluster(Leg(0, 0, SHAPES[0][0], ("scale-out",)), tmp_path) as kafka:
        asked = ConfigResource(ResourceType.BROKER, "1")
        entry = kafka.admin().describe_configs([asked])[asked].result(60)["group.consumer.assignment.interval.ms"]
    assert (entry.value, entry.is_default) == ("1000", True)
