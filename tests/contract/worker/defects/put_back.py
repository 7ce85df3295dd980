"""A defect that there once was, put back by its patch in a copy of the service, and the first story that finds it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

_ROOT = Path(__file__).parents[4]
_FIRST = """
import json, sys
from importlib import import_module
import kunicorn
copy, stories, seed, most, first = sys.argv[1:]
assert kunicorn.__file__.startswith(copy), f"{kunicorn.__file__} is not the copy in {copy}"
numbers = sorted(range(int(most)), key=lambda number: number != int(first))
found = import_module(stories).told(int(seed), numbers)
print(json.dumps(None if found is None else [found.number, str(found.error), found.accident]))
"""


class Find(NamedTuple):
    """The first story of a seed that was told and does not hold."""

    number: int
    reason: str
    accident: str
    """What the patched code broke by: then the patch puts back no defect. Empty where the story says what is wrong."""


class Accident(Exception):
    """The patched code breaks by itself, which says nothing about what stories find."""


@contextmanager
def put_back(patch: Path) -> Iterator[Path]:
    """Where the service is that has the defect, while it lasts."""
    with TemporaryDirectory() as directory:
        service = Path(directory) / "service"
        # With its bytecode: what the patch leaves as it is need not be compiled once more.
        shutil.copytree(_ROOT / "service" / "kunicorn", service / "kunicorn")
        applied = ["git", "apply", "--unsafe-paths", "-p1", str(patch)]
        done = subprocess.run(applied, cwd=directory, check=False, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(f"make {patch.name} anew: {done.stderr}")
        yield service


def first_find(service: Path, stories: str, seed: int, most: int, first: int = 0) -> Find | None:
    """The first of so many stories of that seed that does not hold beside that service; None: all do. `stories`: the
    module that tells them; `first`: the number of the one that it tells before all others."""
    environment = {**os.environ, "PYTHONPATH": f"{service}{os.pathsep}{_ROOT}", "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", _FIRST, str(service), stories, str(seed), str(most), str(first)]
    ended = subprocess.run(command, env=environment, cwd=_ROOT, check=False, capture_output=True, text=True)
    if ended.returncode:
        raise Accident(ended.stderr)
    told = json.loads(ended.stdout.splitlines()[-1])
    return None if told is None else Find(*told)
