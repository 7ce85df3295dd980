"""Counting the tries of a record in a task, by the rule of a worker (`kunicorn.worker.failures`)."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from typing import Protocol

from kunicorn.handler.dead_letters import Cause, died
from kunicorn.handler.decode import NotDecodableYet
from kunicorn.handler.outcome import Wait
from kunicorn.handler.retry import End, Policies, TryAgain, Verdict
from kunicorn.ipc.clock import NANOSECONDS

log = logging.getLogger("kunicorn.pipeline")


def kept_back(offset: int, deaths: int, policies: Policies) -> tuple[End, Cause]:
    """How a record ends that so many processes have died with, and why. Logs it."""
    text = f"{deaths} processes died with offset {offset} in hand"
    log.warning(f"{text}: it is kept from the handler")
    return policies.default.on_failure, died(text, deaths)


class Tried(Protocol):
    """What is counted of a record, or of records that are called together; a worker's `InFlight` has it."""

    failures: int
    failing_since: int
    """Nanoseconds of the caller's clock, when the first try failed; moved on by what counted for none."""
    undecoded: int
    """How often in a row it could not be decoded for now."""


@dataclass(slots=True)
class Tries:
    """`Tried` of what has one call at a time."""

    failures: int = 0
    failing_since: int = 0
    undecoded: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """A call that failed."""

    error: BaseException
    """As `outcome.as_failure` has it."""
    began_ns: int
    ended_ns: int


def verdict_on(tried: Tried, failed: Failed, policies: Policies, named: str) -> Verdict:
    """Count the failed call and say what becomes of the record, `named` for people. Logs why it is tried again.

    A `Wait` and a registry that is away are no failed tries, and the time of their calls and waits counts for none.
    """
    error, took_ns = failed.error, failed.ended_ns - failed.began_ns
    if isinstance(error, Wait):
        verdict = TryAgain(round(error.seconds * NANOSECONDS), None)
        tried.failing_since += took_ns + verdict.wait_ns
        log.warning(f"{named} waits for {error.seconds:.3f} s, as the handler says")
        return verdict
    if isinstance(error, NotDecodableYet):
        tried.undecoded += 1
        verdict, count = policies.later(tried.undecoded, random.random()), tried.undecoded
        tried.failing_since += took_ns + verdict.wait_ns
    else:
        said = _verdict(tried, failed, policies)
        if not isinstance(said, TryAgain):
            return said
        verdict, count = said, tried.failures
    log.warning(
        f"the handler failed on {named} ({verdict.counted(count)}), again in {verdict.wait_ns / NANOSECONDS:.3f} s: "
        f"{type(error).__name__}"
    )
    return verdict


def _verdict(tried: Tried, failed: Failed, policies: Policies) -> Verdict:
    tried.undecoded = 0
    tried.failures += 1
    if tried.failures == 1:
        tried.failing_since = failed.ended_ns
    return policies.verdict(failed.error, tried.failures, failed.ended_ns - tried.failing_since, random.random())
