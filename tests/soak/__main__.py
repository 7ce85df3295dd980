"""`python -m tests.soak`: what `make soak` runs.

It goes on with the legs that are not kept yet of this seed and their members' code, and adds the figures of each to
docs/soak.jsonl, from which `make docs` makes docs/soak.md. It exits with 1 where a promise did not hold; the leg's logs
and its audit then stay where it says.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path

from kunicorn.errors import how_it_ended
from tests.chaos.group import FETCHERS
from tests.kafka.artifacts import KafkaUnavailable
from tests.soak import figures
from tests.soak.faults import FAULTS, unavailable
from tests.soak.plan import Leg, leg, legs, takes
from tests.soak.run import run
from tests.soak.terms import rate

SEED = 27
"""Of the legs that the page is made of; another one makes other groups of the same faults."""
_AUTOGROUP = Path("/proc/self/autogroup")
_WAIT = threading.Event()
"""Never set: between two looks at legs that run."""


def main() -> int:
    """Run legs until the time is over, at least one; 1 if a promise did not hold, 2 if brokers did not come up."""
    options = _options()
    # Members are not our session's: an end by SIGTERM has to run the `finally` blocks that kill them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    code = figures.code_under_test()
    if options.leg is not None:
        return _one(options.leg, code, options)
    numbers = figures.next_legs(options.seed, code, figures.kept())
    if options.fetcher:
        numbers = (number for number in numbers if leg(options.seed, number).shape.fetcher == options.fetcher)
    return _many(numbers, options)


def _one(number: int, code: Mapping[str, str], options: argparse.Namespace) -> int:
    _serve_first()
    try:
        return 0 if _ran(number, code, options) else 1
    except KafkaUnavailable as error:
        tell(f"  no leg: {error}")
        return 2


def _many(numbers: Iterator[int], options: argparse.Namespace) -> int:
    """Each leg in a process of its own, `side_by_side` of them at a time: a leg mostly waits, for sessions to end and
    for groups to be whole."""
    until = time.monotonic() + options.hours * 3600
    # Of two that follow each other one takes minutes, and may fit where the other does not.
    following = list(itertools.islice(numbers, 2))
    running: dict[subprocess.Popen[bytes], tuple[int, float]] = {}
    ended: set[int] = set()
    slowness = 1.0
    try:
        while True:
            for each in [each for each in running if each.poll() is not None]:
                number, began = running.pop(each)
                slowness = max(slowness, (time.monotonic() - began) / takes(number))
                ended.add(_verdict(number, each.returncode))
            left = until - time.monotonic()
            fits = next((number for number in following if slowness * takes(number) < left), None)
            if fits is None and not ended and not running:
                fits = min(following, key=takes)
            if fits is not None and 2 not in ended and len(running) < options.side_by_side:
                running[subprocess.Popen(_command(fits, options), start_new_session=True)] = fits, time.monotonic()
                following = [*(number for number in following if number != fits), next(numbers)]
            elif not running:
                return max(ended)
            _WAIT.wait(0.5)
    finally:
        for each in running:
            each.terminate()
        for each in running:
            each.wait()


def _verdict(number: int, code: int) -> int:
    """The leg's exit status. One that a signal ended, as where the client library of its load crashes, is none that
    went well."""
    if code >= 0:
        return code
    tell(f"  leg {number} was ended by {how_it_ended(code)}: nothing of it is kept, and the next run has it again")
    return 1


def _command(number: int, options: argparse.Namespace) -> list[str]:
    """That leads to `_one`."""
    faults = [word for fault in options.fault for word in ("--fault", fault)]
    return [sys.executable, "-m", "tests.soak", "--seed", str(options.seed), "--leg", str(number), *faults]


def _serve_first() -> None:
    """Brokers and the load of a leg are one group of Linux' scheduler, and each process of each member is another one
    (sched(7), the autogroup feature): where both want all that there is, brokers have a tenth, say nothing for longer
    than a session, and every group is hurt before its fault. Without root's rights it stays so."""
    with suppress(OSError):
        _AUTOGROUP.write_text("-5")


def _ran(number: int, code: Mapping[str, str], options: argparse.Namespace) -> bool:
    planned = _possible(leg(options.seed, number, options.fault))
    directory = Path(tempfile.mkdtemp(prefix=f"kunicorn-soak-{options.seed}-{number}-"))
    began = figures.started(planned, code, str(date.today()), rate(planned.shape))
    done = run(planned, began, directory, lambda line: tell(f"[{number}] {line}"))
    # What was picked by hand is no leg of the seed.
    if not options.fault:
        figures.keep(done)
    tell(
        f"  leg {number}: {done.records:,} records in {done.seconds} s, {done.lost} lost, {done.handled_again} handled "
        f"again, {done.twice_in_order} of them in order, {done.outputs:,} outputs"
    )
    for complaint in done.complaints:
        tell(f"  BROKEN {complaint}")
    if done.complaints:
        tell(f"  FAILED: make soak SEED={options.seed} LEG={number} repeats it; logs and audit: {directory}")
    return not done.complaints


def _possible(planned: Leg) -> Leg:
    """Without faults that this machine or this clone cannot have: docs/soak.md says that nothing has met them."""
    reasons = {name: why for name in planned.faults if (why := unavailable(name))}
    for name, why in reasons.items():
        tell(f"  left out: {name}, as {why}")
    return replace(planned, faults=tuple(name for name in planned.faults if name not in reasons))


def tell(line: str) -> None:
    """To whoever watches the run."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0, help="begin no leg that would end later (default: 1)")
    parser.add_argument("--side-by-side", type=int, default=1, help="legs at a time, three brokers each (default: 1)")
    parser.add_argument("--seed", type=int, default=SEED, help="of the legs (default: %(default)s)")
    parser.add_argument("--fetcher", choices=FETCHERS, help="only legs whose members have this one")
    parser.add_argument("--leg", type=int, help="only this one")
    parser.add_argument("--fault", action="append", choices=FAULTS, default=[], help="only these; nothing is kept")
    parser.add_argument("--plan", type=int, metavar="N", help="tell the first N legs and run none")
    parser.add_argument("--code", action="store_true", help="tell what a leg would be counted on, and run none")
    options = parser.parse_args()
    if options.code:
        for fetcher, code in figures.code_under_test().items():
            print(f"{code}  members with the {fetcher} fetcher")
        sys.exit(0)
    if options.plan is not None:
        for planned in itertools.islice(legs(options.seed, options.fault), options.plan):
            print(planned)
        sys.exit(0)
    return options


if __name__ == "__main__":
    sys.exit(main())
