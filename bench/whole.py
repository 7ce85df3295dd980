"""All of docs/benchmarks.md anew, one program after the other, on one machine. `make bench-whole`

    python -m bench.whole [--only WORD …] [--plan]

It takes about three hours, and wants a machine that does nothing else. What a program has written stays when the
series is cut off; the next run goes on with those that have not measured this code yet, as docs/benchmarks.jsonl has
it. Their output is in reports/. The page says when each part was measured, and on which commit. The exit status is 1
if a program ended without having written its section; a goal that was missed is in the section.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from bench.pages import PAGE, sections, write_section
from tests import checkout

TITLE = "When this was measured"
ROOT = Path(__file__).parents[1]
_REPORTS = ROOT / "reports"
LOG = ROOT / "docs" / "benchmarks.jsonl"
"""A line for each program that has ended: kept with the page, so that another clone goes on with the series."""
_CODE = ("service", "bench", "tests/kafka")
"""What a figure depends on, and the tables do not say."""
_BEFORE_COLUMNS = "21c57acd"
"""The last commit whose exports went by messages."""

PROGRAMS: Sequence[str] = (
    "bench.peers --write",
    "bench.peers --broker small --first 1 --write",
    "bench.peers.growth --write",
    "bench.peers.anatomy --write",
    "bench.handover --write",
    "bench.scale --write",
    "bench.memory --write",
    "bench.fetchers --write",
    "bench.columns --write",
    "bench.features --write",
    "bench.decoding --write",
    "bench.concurrency --write",
    "bench.producing --write",
    "bench.sharing --write",
    "bench.scrape --write",
    "bench.pipeline --write",
    "bench.job_size --write",
    "bench.lake_columns --write",
    "bench.store_calls --write",
    f"bench.pairs --old {_BEFORE_COLUMNS} --only export --write",
    "bench.groups --write",
)
"""As `python -m` has them; what is compared with others comes first."""
ELSEWHERE = {"bench.differential": "docs/conformance.md has its figures"}
"""Programs with `--write` whose sections are no part of the page."""


@dataclass(frozen=True)
class Measured:
    """A program that has ended."""

    program: str
    code: str
    commit: str
    begun: str
    """In the machine's own time, to the minute."""
    minutes: int
    load: float
    """How many processes had wanted a processor, in the minute before."""
    sections: list[str]
    """Titles of what it wrote; none where it failed, or found the same figures as before."""
    status: int

    @property
    def wrote(self) -> bool:
        """Whether its figures are on the page."""
        return bool(self.sections) or self.status == 0


def main() -> int:
    """Measure what is missing, one program at a time."""
    parser = argparse.ArgumentParser(prog="python -m bench.whole", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="programs in whose name one of these is")
    parser.add_argument("--plan", action="store_true", help="tell what would be measured, and measure nothing")
    options = parser.parse_args()
    code = code_under_test()
    missing = [program for program in missing_of(code, kept()) if chosen(program, options.only)]
    if options.plan:
        print("\n".join(missing))
        return 0
    _REPORTS.mkdir(exist_ok=True)
    failed = [program for program in missing if not one(program, code).wrote]
    for program in failed:
        print(f"FAILED, and wrote nothing: {program}; its output is {log_of(program)}", flush=True)
    return 1 if failed else 0


def chosen(program: str, words: Sequence[str]) -> bool:
    """Whether that program is one of those asked for; all are where none is."""
    return not words or any(word in program for word in words)


def missing_of(code: str, measured: Sequence[Measured]) -> list[str]:
    """Programs that have written nothing of that code yet, in their order."""
    there = {each.program for each in measured if each.code == code and each.wrote}
    return [program for program in PROGRAMS if program not in there]


def one(program: str, code: str) -> Measured:
    """Run it, and note how it ended. Blocks for minutes."""
    print(f"{time.strftime('%H:%M')} {program}", flush=True)
    before, load, begun, start = sections(PAGE.read_text()), os.getloadavg()[0], datetime.now(), time.monotonic()
    with log_of(program).open("w") as output:
        command = [sys.executable, "-m", *program.split()]
        ended = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False)
    after = sections(PAGE.read_text())
    found = Measured(
        program,
        code,
        checkout.commit(),
        f"{begun:%Y-%m-%d %H:%M}",
        round((time.monotonic() - start) / 60),
        round(load, 1),
        [title for title, text in after.items() if before.get(title) != text],
        ended.returncode,
    )
    with LOG.open("a") as log:
        log.write(json.dumps(asdict(found)) + "\n")
    write_section(TITLE, page(kept()))
    return found


def log_of(program: str) -> Path:
    """Where its output goes."""
    return _REPORTS / f"whole-{re.sub(r'[^a-z0-9]+', '-', program.removeprefix('bench.').removesuffix(' --write'))}.log"


def kept() -> list[Measured]:
    """All that has ended so far, of whatever code."""
    lines = LOG.read_text().splitlines() if LOG.exists() else []
    return [Measured(**json.loads(line)) for line in lines]


def page(measured: Sequence[Measured]) -> str:
    """The section that says when the others were measured, each the last time."""
    last = {each.program: each for each in measured if each.sections}
    rows = [
        f"| {', '.join(each.sections)} | `python -m {each.program}` | {each.begun} | {each.minutes} | {each.load:.1f} "
        f"| {each.commit} |"
        for each in last.values()
    ]
    head = [
        "`make bench-whole`, one program after the other on one machine. *Load*: how many processes wanted a processor",
        "in the minute before.",
        "",
        "| section | program | begun | minutes | load | commit |",
        "| --- | --- | --- | --: | --: | --- |",
    ]
    return "\n".join([*head, *rows])


def code_under_test() -> str:
    """What is measured, and by what, as git names it. Raises `SystemExit` where files differ from the commit."""
    return " ".join(name[:10] for name in checkout.trees(*_CODE))


if __name__ == "__main__":
    sys.exit(main())
