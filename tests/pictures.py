"""The demo as a picture for the README: `python -m tests.pictures docs/pictures/demo.svg`."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from kunicorn.commands.demo.scenario import run_demo

_FONTS_FROM_ELSEWHERE = re.compile(r"@font-face\s*\{.*?\}", re.DOTALL)


def main(file: Path) -> int:
    """Play the demo, draw what it printed; its exit code."""
    console = Console(record=True, file=io.StringIO(), width=118, highlight=False)
    code = run_demo(console=console)
    drawn = _FONTS_FROM_ELSEWHERE.sub("", console.export_svg(title="kunicorn demo"))
    file.write_text(re.sub(r"[ \t]+$", "", drawn, flags=re.MULTILINE))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
