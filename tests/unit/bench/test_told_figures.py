"""Figures that people have written into pages are those of docs/benchmarks.md, which programs write."""

from __future__ import annotations

import re

import pytest

from bench.pages import PAGE
from tests.markdown import ROOT, cells

BENCHMARKS = PAGE.read_text()


def page(name: str) -> str:
    return " ".join((ROOT / "docs" / name).read_text().split())


def section(title: str) -> str:
    return BENCHMARKS.split(f"\n## {title}\n")[1].split("\n## ")[0]


def figures(title: str, *begins: str) -> list[str]:
    """Cells of the section's last row that begins with these."""
    rows = map(cells, section(title).splitlines())
    return [row for row in rows if row[: len(begins)] == list(begins)][-1]


@pytest.mark.parametrize(
    ("told", "what"),
    [
        (r"reached ([\d.]+) of the loop's", "one worker, record handler, beside the tuned confluent-kafka loop"),
        (r"handled ([\d.]+) times as many records a second as aiokafka", "two workers, batch handler, beside aiokafka"),
    ],
)
def test_how_fast_others_are_is_as_it_was_measured(told: str, what: str) -> None:
    measured = figures("Beside every peer", what)[2].removesuffix(" ×")
    (written,) = re.findall(told, page("compared.md"))
    assert float(written) == round(float(measured), len(written.partition(".")[2]))


def test_what_transactions_cost_is_as_it_was_measured() -> None:
    least = figures("What transactions cost", "only copies", "at least once")
    for records, delivery in (("1,000", "transactions of 1,000"), ("10,000", "of 10,000")):
        most = figures("What transactions cost", "only copies", delivery)
        worker, broker = (float(many) / float(few) for many, few in zip(most[3:5], least[3:5], strict=True))
        told = re.search(rf"\| {records}[ (][^|]*\| ([\d.]+) times[^|]*\| ([\d.]+) times", page("exactly-once.md"))
        assert told is not None
        assert told.groups() == (f"{broker:.1f}", f"{worker:.1f}")


def test_how_near_a_group_is_to_its_largest_record_is_as_it_was_modelled() -> None:
    kilobytes = figures("Large groups, modelled", "one more", "cooperative-sticky", "kunicorn")[-1]
    (told,) = re.findall(r"1,000 members and 100,000 partitions are (\d+) % of that record's limit", page("groups.md"))
    assert int(told) == round(float(kilobytes) * 1000 / 1_048_588 * 100)
