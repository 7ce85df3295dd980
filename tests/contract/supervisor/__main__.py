"""One story, to be read; or many, to be counted.

python -m tests.contract.supervisor --seed 1 --story 27 [--whole]
python -m tests.contract.supervisor --seed 1 --stories 2000
"""

from __future__ import annotations

import argparse
import sys

from tests.contract.supervisor.stories import read, told


def main() -> int:
    """The exit status: 1 where something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.contract.supervisor", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--story", type=int, help="print this one; where it fails, the simplest one that fails like it")
    parser.add_argument("--whole", action="store_true", help="print it as it is, not a simpler one")
    parser.add_argument("--stories", type=int, default=200, help="tell so many")
    asked = parser.parse_args()
    if asked.story is not None:
        lines = read(asked.seed, asked.story, simplest=not asked.whole)
        print("\n".join(lines))
        return int(lines[-1] != "it holds")
    found = told(asked.seed, range(asked.stories))
    print(found or f"{asked.stories} stories of seed {asked.seed} hold")
    return int(found is not None)


if __name__ == "__main__":
    sys.exit(main())
