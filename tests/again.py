"""`make test` several times in a row: is it green at the first try, on an idle machine and on a busy one?

`make test-again RUNS=5 BUSY=2 PYTHON=…` runs it. Each run is noted in reports/again.jsonl when it is over, with the end
of what it said in a file beside; a series that was cut off goes on where it was. It ends at the first red run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import checkout

_ROOT = Path(__file__).parents[1]
_REPORTS = _ROOT / "reports"
_LOG = _REPORTS / "again.jsonl"
_NOT_TRIED = (
    "docs",
    "CHANGELOG.md",
    "tests/contract/conformance/endurance.json",
    "tests/contract/worker/defects/recorded.json",
)
"""Pages and recorded figures, which change no run."""


def noted(series: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs of this series that are over."""
    if not _LOG.exists():
        return []
    runs = [json.loads(line) for line in _LOG.read_text().splitlines()]
    return [run for run in runs if series.items() <= run.items()]


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many processes that compute for nothing."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_once(series: dict[str, Any], number: int) -> dict[str, Any]:
    """One run of `make test`; blocks until it is over."""
    said = _REPORTS / f"again-{series['code']}-{series['python']}-busy{series['busy']}-{number}.log"
    began = time.monotonic()
    with said.open("w") as output, busy(series["busy"]):
        command = ["make", "--no-print-directory", "test", f"PYTHON={sys.executable}", f"VENV={sys.prefix}"]
        code = subprocess.run(command, cwd=_ROOT, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    return {
        **series,
        "number": number,
        "green": code == 0,
        "seconds": round(time.monotonic() - began),
        "said": said.name,
    }


def main() -> int:
    """The exit code: 0 when all runs of the series are green."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--busy", type=int, default=0, help="busy loops beside the tests")
    options = parser.parse_args()
    _REPORTS.mkdir(exist_ok=True)
    python = "{}.{}".format(*sys.version_info)
    series = {"code": checkout.code(but=_NOT_TRIED), "python": python, "busy": options.busy}
    runs = noted(series)
    for number in range(len(runs), options.runs):
        runs.append(run_once(series, number + 1))
        with _LOG.open("a") as log:
            log.write(json.dumps(runs[-1]) + "\n")
        print("run {number}: {outcome}, {seconds} s; {said}".format(outcome=_word(runs[-1]), **runs[-1]), flush=True)
        if not runs[-1]["green"]:
            break
    green = sum(run["green"] for run in runs)
    print(f"{green} of {options.runs} green at the first try; Python {python}, {options.busy} busy loops beside")
    return 0 if green == options.runs else 1


def _word(run: dict[str, Any]) -> str:
    return "green" if run["green"] else "red"


if __name__ == "__main__":
    sys.exit(main())
