"""`python -m tests.chaos`: what `make chaos` runs."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.chaos import page
from tests.chaos.crowds import CROWDS, ONE
from tests.chaos.faults import FAULTS
from tests.chaos.group import BROKER_SETTINGS, FETCHERS, LINKS
from tests.chaos.run import Result, run
from tests.chaos.schedule import WHOLE, Schedule, crowded, remember, remembered, schedule
from tests.kafka import ProxiedCluster


def main() -> int:
    """Run schedules until all are done or the time is over; exit 1 if a promise did not hold."""
    options = _options()
    # Members are not our session's: an end by SIGTERM has to run the `finally` blocks that kill them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    directory = Path(tempfile.mkdtemp(prefix="kunicorn-chaos-"))
    tell(f"logs, settings and audits: {directory}")
    until = time.monotonic() + options.minutes * 60
    results: list[Result] = []
    failed = 0
    with ProxiedCluster(LINKS, overrides=BROKER_SETTINGS) as kafka:
        for what in planned(options.seed, options.fault, options.fetcher):
            if time.monotonic() > until:
                tell(f"{options.minutes:g} minutes are over; left out: {what}")
                continue
            result = tried(kafka, what, directory)
            if result is None:
                failed += 1
            else:
                results.append(result)
    if options.write:
        write([result for result in results if result.schedule.crowd == ONE], failed)
    return 1 if failed else 0


def write(results: list[Result], failed: int) -> None:
    """docs/delivery.md, unless that would publish less than the whole."""
    if failed or not page.complete(results):
        tell(
            f"{page.PAGE} stays as it was: {failed} schedules failed, or not every fault met each protocol and fetcher"
        )
        return
    page.PAGE.write_text(page.page(results))
    tell(f"written: {page.PAGE}")


def tried(kafka: ProxiedCluster, what: Schedule, directory: Path) -> Result | None:
    """The result if every promise held; otherwise it is told, and the seed is kept."""
    try:
        result = run(kafka, what, directory, tell)
        broken = "\n".join(result.broken)
    except (AssertionError, RuntimeError) as error:
        result, broken = None, str(error) or repr(error)
    if not broken:
        return result
    tell(f"  FAILED {what}\n{broken}")
    remember(what, broken)
    return None


def planned(seed: int | None, only: Sequence[str], fetchers: Sequence[str]) -> Iterator[Schedule]:
    """Schedules that failed before, then fresh ones; or just the one asked for."""
    if seed is not None:
        yield from (schedule(seed, only, ONE, fetcher) for fetcher in fetchers)
        return
    yield from (each for each in remembered() if each.fetcher in fetchers)
    first = WHOLE * random.randrange(10_000)
    yield from (schedule(first + number, only, ONE, fetcher) for fetcher in fetchers for number in range(WHOLE))
    crowds = [(first + number, crowd) for number, crowd in enumerate(CROWDS) if crowd != ONE]
    yield from (crowded(seed, crowd, fetcher) for seed, crowd in crowds for fetcher in fetchers)


def tell(line: str) -> None:
    """To whoever watches the run."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="only this one's schedule")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no schedule later (default: %(default)s)")
    parser.add_argument("--fault", action="append", choices=FAULTS, default=[], help="only this; may be repeated")
    parser.add_argument("--fetcher", action="append", choices=FETCHERS, help="only over this one (default: each)")
    parser.add_argument("--write", action="store_true", help="write docs/delivery.md if all promises held")
    options = parser.parse_args()
    options.fetcher = options.fetcher or FETCHERS
    if options.fault and options.seed is None:
        parser.error("--fault picks from one seed's schedule: name it with --seed")
    return options


if __name__ == "__main__":
    sys.exit(main())
