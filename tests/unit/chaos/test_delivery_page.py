"""docs/delivery.md names every fault and every promise; its figures are those of some run."""

from __future__ import annotations

import re

import pytest

from kunicorn.observe.catalogue import Kind, every
from kunicorn.settings.load import sections
from tests.chaos.faults import FAULTS
from tests.chaos.group import PROTOCOLS
from tests.chaos.page import COLUMNS, INTRODUCTION, PAGE, promises
from tests.chaos.promises import PROMISES

WRITE = "run `make chaos`"


def test_the_page_has_the_promises_of_the_code() -> None:
    assert promises() in PAGE.read_text(), WRITE


def test_the_page_begins_and_explains_its_columns_as_the_code_says() -> None:
    assert PAGE.read_text().startswith("\n\n".join(INTRODUCTION)), WRITE
    assert COLUMNS in PAGE.read_text(), WRITE


def test_the_figures_of_the_introduction_are_the_defaults() -> None:
    told = dict(re.findall(r"(\w+_ms)[,)]* ?\(?(\d+) s\)", "".join(INTRODUCTION)))
    group = sections()["group"].model_fields
    assert {name: group[name].default for name in told} == {name: int(seconds) * 1000 for name, seconds in told.items()}
    assert len(told) == 3


@pytest.mark.parametrize("title", PROTOCOLS)
def test_the_page_has_every_fault_under_every_protocol(title: str) -> None:
    section = PAGE.read_text().partition(f"### {title}\n")[2].partition("\n#")[0]
    rows = [row.split(" | ")[0] for row in re.findall(r"^\| (.*)", section, re.MULTILINE)[2:]]
    assert rows == [fault.title for fault in FAULTS.values()], WRITE


def test_promises_name_settings_and_metrics_that_exist() -> None:
    settings = {f"{section}.{name}" for section, model in sections().items() for name in model.model_fields}
    metrics = {each.name + ("_total" if each.kind is Kind.COUNTER else "") for each in every()}
    assert {name for promise in PROMISES for name in promise.settings} <= settings
    assert {name for promise in PROMISES for name in promise.metrics} <= metrics
