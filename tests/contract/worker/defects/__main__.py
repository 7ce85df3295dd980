"""How many stories it takes to find defects that there once were: each put back by a patch, in a copy.

python -m tests.contract.worker.defects [--seeds 20] [--stories 20000] [--only DEFECT …] [--write]
python -m tests.contract.supervisor.defects likewise

A seed is stopped at its first story that does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.contract.worker.defects.recorded import DEFECTS, FIRST_SEEDS, HERE, Measured, read, table

_ROOT = HERE.parents[3]
_ONE = """
import sys
from importlib import import_module
told = import_module(sys.argv[3]).told
found = told(int(sys.argv[1]), range(int(sys.argv[2])))
print(found.number if found is not None else -1)
"""


def main(of: str, here: Path, defects: Mapping[str, str], stories: int) -> None:
    """Measure, and print the table. `of`: whose stories; `here`: the patches; `stories`: most of one seed."""
    parser = argparse.ArgumentParser(prog=f"python -m {of}.defects", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--stories", type=int, default=stories, help="most of one seed")
    parser.add_argument("--only", nargs="+", metavar="DEFECT", help="these; the others stay as they were measured")
    parser.add_argument("--write", action="store_true", help="for docs/conformance.md, which is made from it")
    asked = parser.parse_args()
    before = read(here / "recorded.json") if asked.only else None
    found = {
        patch.stem: _measured(patch, asked.seeds, asked.stories, f"{of}.stories")
        for patch in sorted(here.glob("*.patch"))
        if not asked.only or patch.stem in asked.only
    }
    measured = Measured(asked.stories, {**(before.found if before is not None else {}), **found})
    print(table(measured, defects))
    if asked.write:
        (here / "recorded.json").write_text(
            json.dumps({"stories": measured.stories, "found": measured.found}, indent=1) + "\n"
        )


def _measured(patch: Path, seeds: int, stories: int, told: str) -> list[int | None]:
    """For each seed the number of the story that finds it, the first being 1; None: none did."""
    with TemporaryDirectory() as directory:
        service = Path(directory) / "service"
        shutil.copytree(_ROOT / "service", service)
        subprocess.run(["git", "apply", "--unsafe-paths", "-p1", str(patch)], cwd=directory, check=True)
        with ThreadPoolExecutor(os.cpu_count()) as several:
            first = FIRST_SEEDS.get(patch.stem, 1)
            return list(
                several.map(lambda seed: _first(service, patch, seed, stories, told), range(first, first + seeds))
            )


def _first(service: Path, patch: Path, seed: int, stories: int, told: str) -> int | None:
    environment = {**os.environ, "PYTHONPATH": f"{service}{os.pathsep}{_ROOT}", "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", _ONE, str(seed), str(stories), told]
    ended = subprocess.run(command, env=environment, cwd=_ROOT, check=True, capture_output=True, text=True)
    number = int(ended.stdout.split()[-1])
    found = None if number < 0 else number + 1
    print(f"{patch.stem}, seed {seed}: {found or 'not found'}", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    main("tests.contract.worker", HERE, DEFECTS, 20_000)
