"""What is exposed is a promise to dashboards and alerts: names, types, labels and buckets stay as they are.

To change them on purpose: python -m tests.unit.observe.test_exposed
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kunicorn.observe import logs
from kunicorn.observe.metrics import Metrics
from tests.unit.observe.eventful import eventful
from tests.unit.observe.snapshots import partition, status

_EXPOSED = Path(__file__).parent / "exposed"


def exposed(metrics: Metrics, accept: str) -> str:
    """The page without the words, and without what is the process's own; its families in the order of their names."""
    busy = status(partitions=(partition(0, in_hand=1, in_hand_age=1.0),))
    body, _ = metrics.render(busy, accept, 2000)
    families: dict[str, list[str]] = {}
    family: list[str] = []
    for line in body.decode().splitlines():
        if line.startswith("# TYPE "):
            family = families.setdefault(line.split()[2], [])
        if line.startswith(("# HELP ", "# EOF")):
            continue
        family.append(line)
    return "".join(f"{line}\n" for name in sorted(families) if "process_" not in name[:8] for line in families[name])


PAGES: dict[str, Callable[[], str]] = {
    "at_start.prom": lambda: exposed(Metrics(), ""),
    "eventful.prom": lambda: exposed(eventful(), ""),
    "eventful.openmetrics": lambda: exposed(eventful(), "application/openmetrics-text"),
}


@pytest.mark.parametrize("name", PAGES)
def test_names_types_labels_and_buckets_are_what_they_were(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "dropped", lambda: 0)
    assert PAGES[name]() == (_EXPOSED / name).read_text()


if __name__ == "__main__":
    _EXPOSED.mkdir(exist_ok=True)
    for of, page in PAGES.items():
        (_EXPOSED / of).write_text(page())
