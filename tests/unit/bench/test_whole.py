"""What `make bench-whole` measures, and how it goes on."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from bench import whole
from bench.pages import PAGE, sections
from bench.whole import ELSEWHERE, PROGRAMS, TITLE, Measured, kept, missing_of, page

BENCH = Path(whole.__file__).parent
LAST = PROGRAMS[-1]
DONE = Measured(LAST, "code", "commit", "2026-01-01 12:00", 3, 0.1, ["A section"], 1)


def test_every_program_that_writes_a_section_is_a_part_of_the_whole() -> None:
    writing = {
        ".".join(("bench", *file.relative_to(BENCH).with_suffix("").parts)).removesuffix(".__main__")
        for file in BENCH.rglob("*.py")
        if 'add_argument("--write"' in file.read_text()
    }
    assert {program.split()[0] for program in PROGRAMS} == writing - ELSEWHERE.keys()


def test_a_series_goes_on_with_what_has_not_measured_this_code() -> None:
    assert missing_of("code", []) == list(PROGRAMS)
    assert missing_of("code", [DONE]) == list(PROGRAMS[:-1])
    assert LAST in missing_of("later code", [DONE])


def test_a_missed_goal_is_a_figure_and_a_program_that_wrote_nothing_runs_again() -> None:
    assert DONE.status
    assert DONE.wrote
    assert missing_of("code", [replace(DONE, sections=[])]) == list(PROGRAMS)


def test_the_page_says_of_each_section_when_it_was_measured() -> None:
    told = page([replace(DONE, begun="2025-12-31 12:00"), DONE, replace(DONE, sections=[])])
    assert f"| A section | `python -m {LAST}` | 2026-01-01 12:00 | 3 | 0.1 | commit |" in told
    assert told.count(LAST) == 1


def test_the_page_has_what_was_kept() -> None:
    assert bool(kept()) == (TITLE in sections(PAGE.read_text()))
    assert not kept() or sections(PAGE.read_text())[TITLE].strip() == page(kept()).strip()


def test_the_sections_of_a_page_are_found_by_their_titles() -> None:
    found = sections("# Page\n\nhead\n\n## One\n\ntext\n### Below\n\n## Two\nmore\n")
    assert found == {"One": "\ntext\n### Below\n\n", "Two": "more\n"}


def test_each_section_of_the_page_names_the_program_that_wrote_it() -> None:
    nameless = [
        title
        for title, text in sections(PAGE.read_text()).items()
        if title != TITLE and not re.search(r"`(make bench|python -m bench)", text)
    ]
    assert not nameless
