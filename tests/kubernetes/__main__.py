"""`python -m tests.kubernetes`: what `make test-kubernetes` runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.kubernetes import page
from tests.kubernetes.options import conditions, played, tell
from tests.kubernetes.run import run
from tests.kubernetes.scenarios import SCENARIOS
from tests.kubernetes.scene import Given


def main() -> int:
    """0 where every scenario that could be run has held, and where there is no cluster."""
    return played(SCENARIOS, __doc__, "kubernetes", _all)


def _all(options: argparse.Namespace, what: Given, directory: Path) -> bool:
    failed = 0
    for name in options.only or SCENARIOS:
        figures = run(what, name, directory, tell)
        tell(f"  {figures}")
        failed += bool(figures.broken)
        where = conditions(what.cluster, options)
        if options.write:
            # Read anew each time: another run may have written meanwhile.
            kept = {each["scenario"]: each for each in page.recorded()["scenarios"]}
            kept[name] = {**figures.json(), "commit": where["commit"]}
            scenarios = [kept[each] for each in SCENARIOS if each in kept]
            page.write({"conditions": where, "scenarios": scenarios})
    return not failed


if __name__ == "__main__":
    sys.exit(main())
