"""The defects that stories are to find can still be put back: else their figures could not be measured again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_PATCHES = sorted(_HERE.glob("*/defects/*.patch"))


@pytest.mark.parametrize("patch", _PATCHES, ids=lambda patch: patch.stem)
def test_a_defect_can_be_put_back(patch: Path) -> None:
    done = subprocess.run(
        ["git", "apply", "--check", "--unsafe-paths", str(patch)],
        cwd=_HERE.parents[1],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"make it anew: {done.stderr}"
