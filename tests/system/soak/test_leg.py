"""A short leg of `make soak`, of one group and few faults, from its brokers to its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.figures import started
from tests.soak.plan import Leg, Shape
from tests.soak.run import run
from tests.soak.terms import rate

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

SHAPES = (
    (Shape("cooperative-sticky", False, "batch", "none", "librdkafka", "PLAINTEXT"), ("kill-worker", "scale-out")),
    (Shape("range", True, "keys", "transactions", "own", "SASL_SSL"), ("retention", "rolling-static")),
    (Shape("consumer", False, "arrow", "database", "own", "SSL"), ("move-leaders", "reload")),
)


@pytest.mark.parametrize(("shape", "faults"), SHAPES, ids=lambda each: str(each)[:40])
def test_a_leg_accounts_for_every_record(shape: Shape, faults: tuple[str, ...], tmp_path: Path) -> None:
    leg = Leg(0, 0, shape, faults)
    figures = run(leg, started(leg, "none", "none", rate(shape)), tmp_path / "leg", print)
    assert figures.complaints == []
    assert [each.fault for each in figures.faults] == ["quiet", *faults]
    assert figures.records > 10_000
    assert figures.lost == figures.twice_in_order == 0
    assert (figures.outputs > 0) == (shape.delivery != "none")
    assert not (tmp_path / "leg").exists(), "of a leg in which every promise held only the figures are kept"
