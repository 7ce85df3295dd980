"""Modelled groups of a thousand members: what joins, more partitions and rolling restarts cost. `make bench-groups`

    python -m bench.groups [--cases join one …] [--assignors …] [--rules kunicorn java] [--size 50x1000] [--write]

Prints a JSON object for each case as it is over. `--write` keeps it in docs/large-groups.json, in place of the one
before of its kind, and makes the section of docs/benchmarks.md anew; `--page` does so with the figures that are there.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from dataclasses import asdict

from bench.groups import page
from bench.groups.cases import ASSIGNORS, CASES, RULES, run


def main() -> int:
    """One case after the other."""
    parser = argparse.ArgumentParser(prog="python -m bench.groups", description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--assignors", nargs="+", choices=ASSIGNORS, default=ASSIGNORS)
    parser.add_argument("--rules", nargs="+", choices=list(RULES), default=list(RULES))
    parser.add_argument("--size", type=size, help="members x partitions, in place of the page's sizes")
    parser.add_argument("--write", action="store_true", help="keep the figures, and make the page's section anew")
    parser.add_argument("--page", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if options.page:
        page.write()
        return 0
    if options.write and options.size:
        parser.error("--write keeps cases of the page's sizes only: leave --size out")
    for assignor in options.assignors:
        for rules in options.rules:
            for row in run(rules, assignor, options.cases, options.size):
                print(json.dumps(asdict(row)), flush=True)
                if options.write:
                    page.keep(row)
    peak = resource.getrusage(resource.RUSAGE_SELF)
    print(f"{peak.ru_utime:.0f} s of processor time, {peak.ru_maxrss / 1024:.0f} MiB at most", file=sys.stderr)
    return 0


def size(text: str) -> tuple[int, int]:
    """Members and partitions, as `50x1000`."""
    members, _, partitions = text.partition("x")
    if not (members.isdecimal() and partitions.isdecimal() and int(members) >= 10 and int(partitions) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not MEMBERSxPARTITIONS with ten members or more, as 50x1000")
    return int(members), int(partitions)


if __name__ == "__main__":
    sys.exit(main())
