"""What the page draws beside what the snapshot has; how it draws it, a browser is asked (tests/system/service)."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from kunicorn.observe.metrics import Metrics
from kunicorn.observe.status import Status

PAGE = (Path(__file__).parents[3] / "service" / "kunicorn" / "observe" / "page.js").read_text()


def test_every_total_that_the_page_shows_is_one_that_the_status_has() -> None:
    shown = set(re.findall(r"now\.totals\.(\w+)", PAGE))
    assert shown <= Metrics().totals.keys()
    assert {"dead_letters", "retry_topics", "failures", "sent", "aborted"} <= shown


def test_everything_that_the_page_asks_for_is_in_the_snapshot() -> None:
    asked = set(re.findall(r"\bnow\.(\w+)", PAGE))
    assert asked <= {field.name for field in fields(Status)}
