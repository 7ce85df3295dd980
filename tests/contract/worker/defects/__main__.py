"""How many stories it takes to find defects that there once were: each put back by a patch, in a copy.

python -m tests.contract.worker.defects [--seeds 20] [--stories 20000] [--only DEFECT …] [--side-by-side N] [--write]
python -m tests.contract.supervisor.defects likewise

A seed is stopped at its first story that does not hold. Where that is no verdict of the story, but the patched code has
broken by itself, the patch puts back no defect: that is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.contract.worker.defects.put_back import Accident, first_find, put_back
from tests.contract.worker.defects.recorded import DEFECTS, FIRST_SEEDS, HERE, Measured, read, table


def main(of: str, here: Path, defects: Mapping[str, str], stories: int) -> None:
    """Measure, and print the table. `of`: whose stories; `here`: the patches; `stories`: most of one seed."""
    parser = argparse.ArgumentParser(prog=f"python -m {of}.defects", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--stories", type=int, default=stories, help="most of one seed")
    parser.add_argument("--only", nargs="+", metavar="DEFECT", help="these; the others stay as they were measured")
    parser.add_argument("--side-by-side", type=int, default=os.cpu_count(), metavar="N", help="so many seeds at a time")
    parser.add_argument("--write", action="store_true", help="for docs/conformance.md, which is made from it")
    asked = parser.parse_args()
    before = read(here / "recorded.json") if asked.only else None
    found = {
        patch.stem: _measured(patch, asked, f"{of}.stories", FIRST_SEEDS.get(patch.stem, 1))
        for patch in sorted(here.glob("*.patch"))
        if not asked.only or patch.stem in asked.only
    }
    measured = Measured(asked.stories, {**(before.found if before is not None else {}), **found})
    print(table(measured, defects))
    if asked.write:
        (here / "recorded.json").write_text(
            json.dumps({"stories": measured.stories, "found": measured.found}, indent=1) + "\n"
        )


def _measured(patch: Path, asked: argparse.Namespace, stories: str, first: int) -> list[int | None]:
    """For each seed from `first` on the number of the story that finds it, the first being 1; None: none did."""
    with put_back(patch) as service, ThreadPoolExecutor(asked.side_by_side) as several:

        def one(seed: int) -> int | None:
            return _first(service, patch, seed, asked.stories, stories)

        return list(several.map(one, range(first, first + asked.seeds)))


def _first(service: Path, patch: Path, seed: int, most: int, stories: str) -> int | None:
    found = first_find(service, stories, seed, most)
    which = f"{patch.stem}, seed {seed}"
    if found is not None and found.accident:
        raise Accident(f"{which}, story {found.number}: the patch breaks the code:\n{found.accident}")
    said = "not found" if found is None else f"{found.number + 1}: {found.reason}"
    print(f"{which}: {said}", file=sys.stderr, flush=True)
    return None if found is None else found.number + 1


if __name__ == "__main__":
    main("tests.contract.worker", HERE, DEFECTS, 20_000)
