"""Metric families as a worker reports them: Prometheus's data model, as plain text and numbers."""

from __future__ import annotations

import msgspec

MOST_SERIES = 2_000
"""So many a worker may report: a label that holds a key would make one for each record."""


class Sample(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One series at one moment. Finite: JSON has no other numbers."""

    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One metric with all its series, since this worker's start."""

    name: str
    """Without the `_total` of a counter."""
    kind: str
    """Prometheus's type: counter, gauge, histogram, summary, info, unknown …"""
    documentation: str
    samples: list[Sample]
    merge: str = "sum"
    """What becomes of the same series of several workers: sum, min or max."""
