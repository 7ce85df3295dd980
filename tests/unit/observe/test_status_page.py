"""What the page draws beside what the snapshot has; how it draws it, a browser is asked (tests/system/service)."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from kunicorn.observe import catalogue as c
from kunicorn.observe.actions import Actions
from kunicorn.observe.metrics import Metrics
from kunicorn.observe.status import Status

OBSERVE = Path(__file__).parents[3] / "service" / "kunicorn" / "observe"
PAGE, MARKUP = (OBSERVE / "page.js").read_text(), (OBSERVE / "page.html").read_text()


def test_every_total_that_the_page_shows_is_one_that_the_status_has() -> None:
    shown = set(re.findall(r"now\.totals\.(\w+)", PAGE))
    assert shown <= Metrics().totals.keys()
    assert {"dead_letters", "retry_topics", "failures", "sent", "aborted"} <= shown


def test_everything_that_the_page_asks_for_is_in_the_snapshot() -> None:
    asked = set(re.findall(r"\bnow\.(\w+)", PAGE))
    assert asked <= {field.name for field in fields(Status)}


def test_what_waits_is_red_only_where_the_metric_does_not_say_that_it_is_as_it_should_be() -> None:
    (listed,) = re.findall(r"const AS_THEY_SHOULD_BE = \[(.*)\];", PAGE)
    fine = set(re.findall(r'"(\w+)"', listed))
    assert fine == {"delay", "wait", "rate_limit"}
    assert "delay and wait are as they should be, and rate_limit unless lag grows" in c.WAITING.remedy
    assert "waits(now.workers, AS_THEY_SHOULD_BE);" in PAGE
    assert '["Waiting", number(waiting), troubled > 0]' in PAGE


def test_a_lag_that_is_not_known_is_told_and_is_not_part_of_the_sum() -> None:
    assert "now.partitions.filter((p) => p.lag === null).length;" in PAGE
    assert '["Lag, records", number(unknown > 0 && unknown === now.partitions.length ? null : lag)]' in PAGE
    assert '...(unknown > 0 ? [["Lag not known, partitions", number(unknown)]] : [])' in PAGE


def test_every_button_asks_for_an_action_that_there_is_and_only_seek_has_none() -> None:
    asked = {*re.findall(r'data-action="(\w+)"', MARKUP), *re.findall(r'button\("\w+", "(\w+)", ', PAGE)}
    actions = {name for name in vars(Actions) if not name.startswith("_")}
    assert asked == actions - {"seek"}, "where to is typed: `kunicorn seek`"
