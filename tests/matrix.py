"""Every Python, Kafka and Spark that are supported: unit and contract tests on each Python, the core of the system
tests on each Kafka, each feature of jobs on each Spark. docs/compatibility.md has the tables.

    make test-matrix [ONLY="3.13 4.4.0 spark-4.1.4"]

Each cell is noted in docs/compatibility.json when it is over, with the tree of service/ that it was run on. A cell that
was green on this tree is not run again; one that was red is. What is not on this machine and cannot be fetched is noted
as not run, with the reason. `python -m tests.matrix --page` only writes the table anew.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from tests import checkout, pythons
from tests.kafka.artifacts import KafkaUnavailable, distribution, tools_version
from tests.system.pipeline.versions import FEATURES, LACKS
from tests.system.pipeline.versions import VERSIONS as SPARKS

_ROOT = Path(__file__).parents[1]
PAGE = _ROOT / "docs" / "compatibility.md"
CELLS = PAGE.with_suffix(".json")
PYTHONS = (*pythons.SUPPORTED, "3.14")
KAFKAS = ("4.4.0", "4.3.1", "3.9.1", "3.3.2", "2.8.2")
CORE = (
    "group/test_delivery.py",
    "group/test_rebalances.py",
    "group/test_groups_of_the_consumer_protocol.py",
    "service/workers/test_killing.py",
    "commands/test_offsets.py",
)
"""Of the system tests: delivery, rebalances of both protocols, killed workers, offsets. What a Kafka has not yet is
left out there by its mark, and counted."""
BEGIN, END = "<!-- Measured by `make test-matrix`; do not edit. -->", "<!-- End of what was measured. -->"

Cell = dict[str, Any]


def cells(file: Path = CELLS) -> list[Cell]:
    """What has been noted, in the order of the page."""
    return json.loads(file.read_text()) if file.exists() else []


def note(cell: Cell, file: Path = CELLS) -> None:
    """Put the cell into its place; the others stay as they are."""
    found = {(each["kind"], each["version"]): each for each in [*cells(file), cell]}
    order = [
        *(("Spark", version) for version in SPARKS),
        *(("Python", version) for version in PYTHONS),
        *(("Kafka", version) for version in KAFKAS),
    ]
    known = [found[place] for place in order if place in found]
    file.write_text("[\n" + ",\n".join(f"  {json.dumps(each)}" for each in known) + "\n]\n")


def is_done(kind: str, version: str, tree: str, noted: Sequence[Cell]) -> bool:
    """Whether that cell was green on this tree."""
    same = {"kind": kind, "version": version, "tree": tree, "result": "green"}
    return any(same.items() <= cell.items() for cell in noted)


def tree() -> str:
    """The tree of service/, as git names it. Raises `SystemExit` where files differ from it."""
    (name,) = checkout.trees("service")
    return name[:12]


def on_python(version: str) -> Cell:
    """Unit and contract tests on that Python, in an environment of its own. Blocks for minutes."""
    python = pythons.find(version)
    if python is None:
        return {"result": "not run", "why": "not on this machine"}
    ours = version == "{}.{}".format(*sys.version_info)
    environment = [f"PYTHON={sys.executable}", f"VENV={sys.prefix}"] if ours else [f"PYTHON={python}"]
    return ran(["make", "--no-print-directory", "test-fast", *environment, "JOBS=2"], f"python-{version}")


def on_kafka(version: str) -> Cell:
    """The core of the system tests on that Kafka. Blocks for minutes."""
    try:
        distribution(version)
        distribution(tools_version(version))
    except KafkaUnavailable as error:
        return {"result": "not run", "why": f"cannot be fetched: {str(error).splitlines()[0]}"}
    files = [f"tests/system/{name}" for name in CORE]
    command = [sys.executable, "-m", "pytest", *files, "-m", "not long", "--kafka-version", version]
    return ran([*command, "-n", "2", "--dist", "loadfile"], f"kafka-{version}")


def on_spark(version: str) -> Cell:
    """Each feature of jobs with that PySpark, by this Python. Blocks for minutes."""
    if not (place := _ROOT / "build" / "spark" / version).is_dir():
        return {"result": "not run", "why": f"{place.relative_to(_ROOT)} is not there"}
    tests = "tests/system/pipeline/test_spark_versions.py"
    command = [sys.executable, "-m", "pytest", tests, "-m", "long", "-k", f"[{version}]", "-rA", "-n", "1"]
    cell = ran(command, f"spark-{version}")
    said = (_ROOT / "reports" / f"matrix-spark-{version}.log").read_text()
    return {**cell, "python": "{}.{}".format(*sys.version_info), "features": features(version, said)}


def features(version: str, said: str) -> dict[str, str]:
    """What pytest has told of each feature's test; "not run" where it tells nothing."""
    words = {"PASSED": "green", "FAILED": "red", "ERROR": "red"}
    told = {name: words[word] for word, name in re.findall(r"^(PASSED|FAILED|ERROR) \S+::(\w+)\[", said, re.MULTILINE)}
    found = {feature: told.get(test, "not run") for feature, test in FEATURES.items()}
    refuses = {feature for feature, without in LACKS.items() if version in without}
    return {each: "refused" if result == "green" and each in refuses else result for each, result in found.items()}


def ran(command: Sequence[str], name: str) -> Cell:
    """The cell of a run of pytest; what it said stays in reports/."""
    said = _ROOT / "reports" / f"matrix-{name}.log"
    said.parent.mkdir(exist_ok=True)
    began = time.monotonic()
    with said.open("w") as output:
        done = subprocess.run(command, cwd=_ROOT, stdout=output, stderr=subprocess.STDOUT, check=False)
    cell = judged(done.returncode, said.read_text())
    return {**cell, "seconds": round(time.monotonic() - began)}


def judged(code: int, said: str) -> Cell:
    """Result of a run by its exit code, with the numbers of pytest's last line. A run without that line is red."""
    summary = re.findall(r"^=*\s*((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s", said, re.MULTILINE)
    numbers = {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", summary[-1])} if summary else {}
    counted = {word: numbers[word] for word in ("passed", "failed", "skipped", "deselected") if word in numbers}
    return {"result": "green" if code == 0 and counted.get("passed") else "red", **counted}


def table(noted: Sequence[Cell]) -> str:
    """The page's part: a row for each Python and each Kafka."""
    found: Mapping[tuple[str, str], Cell] = {(each["kind"], each["version"]): each for each in noted}
    lines = [
        "Unit and contract tests were run on each Python, the core of the system tests (delivery, rebalances, killed",
        "workers, offsets) on each Kafka, as one broker in KRaft mode. Tests of what a Kafka does not have yet, such",
        "as the consumer protocol before 4, are left out there.",
        "",
        "| | result | tests | on service/ of | date |",
        "|---|---|---|---|---|",
    ]
    for kind, versions in (("Python", PYTHONS), ("Kafka", KAFKAS)):
        lines += [_row(kind, version, found.get((kind, version), {"result": "not run"})) for version in versions]
    return "\n".join([*lines, "", *_of_spark(found)]) + "\n"


def _of_spark(found: Mapping[tuple[str, str], Cell]) -> list[str]:
    lines = [
        'Each feature of jobs has a test of its own for each Spark. A feature is "refused" if that Spark lacks what it',
        "needs: the test then holds the sentence that says so.",
        "",
        f"| Spark | Python | {' | '.join(FEATURES)} | on service/ of | date |",
        "|---" * (len(FEATURES) + 4) + "|",
    ]
    for version in SPARKS:
        cell = found.get(("Spark", version), {})
        told = [cell.get("features", {}).get(each, "not run") for each in FEATURES]
        on = f"`{cell['tree']}`" if "features" in cell else "–"
        lines.append(f"| {version} | {cell.get('python', '–')} | {' | '.join(told)} | {on} | {cell.get('date', '–')} |")
    return lines


def _row(kind: str, version: str, cell: Cell) -> str:
    why = f": {cell['why']}" if "why" in cell else ""
    words = ("passed", "failed", "skipped", "deselected")
    counted = ", ".join(f"{cell[word]} {word.replace('deselected', 'left out')}" for word in words if word in cell)
    on = f"`{cell['tree']}`" if counted else "–"
    return f"| {kind} {version} | {cell['result']}{why} | {counted or '–'} | {on} | {cell.get('date', '–')} |"


def with_table(page: str, noted: Sequence[Cell]) -> str:
    """The page with its measured part anew."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{PAGE.name} has lost its marks"
    return f"{before}{BEGIN}\n\n{table(noted)}\n{END}{after}"


def write_page() -> None:
    """Write the table into docs/compatibility.md."""
    PAGE.write_text(with_table(PAGE.read_text(), cells()))


def _named(spark: str) -> str:
    """For the command line, where a number alone may be a Kafka's."""
    return f"spark-{spark}"


def main() -> int:
    """The exit code: 0 when every cell that was run is green."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=[*PYTHONS, *KAFKAS, *map(_named, SPARKS)], help="these versions alone"
    )
    parser.add_argument("--page", action="store_true", help="write the table and run nothing")
    options = parser.parse_args()
    if options.page:
        write_page()
        return 0
    service, red = tree(), []
    wanted = [("Python", version, on_python) for version in PYTHONS] + [("Kafka", each, on_kafka) for each in KAFKAS]
    wanted += [("Spark", each, on_spark) for each in SPARKS]
    for kind, version, run in wanted:
        if options.only and (_named(version) if kind == "Spark" else version) not in options.only:
            continue
        if is_done(kind, version, service, cells()):
            print(f"{kind} {version}: green already on this code", flush=True)
            continue
        cell = {"kind": kind, "version": version, **run(version), "tree": service, "date": str(date.today())}
        note(cell)
        write_page()
        print(f"{kind} {version}: {cell['result']}", flush=True)
        red += [version] if cell["result"] == "red" else []
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
