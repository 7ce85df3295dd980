"""A rate limit under the testing kit: records wait by the worker's clock, and no try counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest

from kunicorn import Batch, Record, Retry
from kunicorn.errors import ConfigError
from kunicorn.ipc import clock
from kunicorn.settings.handler import HandlerSettings
from kunicorn.testing import HandlerTest, record
from tests.markdown import ROOT

RATE = {"per_second": 2, "burst": 1}


class Api:
    """When it was called, in seconds from the first call on, by key."""

    def __init__(self) -> None:
        self.calls: dict[Any, list[float]] = defaultdict(list)
        self._began: int | None = None

    def note(self, key: Any) -> None:
        now = clock.now_ns()
        self._began = now if self._began is None else self._began
        self.calls[key].append((now - self._began) / clock.NANOSECONDS)

    def handle(self, record: Record) -> None:
        self.note(record.key)

    async def handle_async(self, record: Record) -> None:
        self.note(record.key)

    def handle_batch(self, batch: Batch) -> None:
        self.note(len(batch))


def spaced(times: list[float], gap: float) -> bool:
    """Whether the times are so far apart, within what the kit's clock is late."""
    return all(at * gap <= time + 0.001 and time <= at * gap * 1.05 + 0.1 for at, time in enumerate(times))


@pytest.mark.parametrize("kind", ["handle", "handle_async"])
@pytest.mark.parametrize("per", ["service", "worker"])
def test_so_many_a_second_begin_whatever_their_partition(kind: str, per: str) -> None:
    api = Api()
    records = [record(str(number), partition=number % 3) for number in range(9)]
    run = HandlerTest(getattr(api, kind), max_attempts=1, rate_limit={**RATE, "per": per}).run(*records)
    assert (run.outcomes, [each.attempts for each in run.records]) == (["done"] * 9, [1] * 9)
    assert spaced(api.calls[None], 0.5), api.calls


def test_a_burst_begins_at_once() -> None:
    api = Api()
    HandlerTest(api.handle, rate_limit={"per_second": 2, "burst": 4}).run(*map(record, "abcdef"))
    assert api.calls[None][:4] == [0] * 4
    assert spaced(api.calls[None][3:], 0.5)


@pytest.mark.parametrize("header", [None, "tenant"])
def test_a_key_that_is_ahead_of_its_rate_waits_and_the_others_go_on(header: str | None) -> None:
    api = Api()

    def handle(record: Record) -> None:
        api.note(record.value)

    def of(tenant: str, partition: int) -> Any:
        where: dict[str, Any] = {"key": tenant} if header is None else {"headers": {"tenant": tenant}}
        return record(tenant, partition=partition, **where)

    limit = {**RATE, "per": "key", **({"header": header} if header else {})}
    given = [of("hot", 0) for _ in range(5)] + [of(f"cold{number}", 1) for number in range(20)]
    run = HandlerTest(handle, max_attempts=1, rate_limit=limit).run(*given)
    assert run.outcomes == ["done"] * 25
    assert spaced(api.calls[b"hot"], 0.5)
    assert all(times[0] < 0.5 for key, times in api.calls.items() if key != b"hot"), "none waits behind the hot one"


def test_a_try_begins_within_the_rate_like_any_other_record() -> None:
    api = Api()

    def handle(record: Record) -> Any:
        api.handle(record)
        return Retry("again") if len(api.calls[None]) % 2 else None

    run = HandlerTest(handle, retry_backoff_ms=1, rate_limit=RATE).run(*map(record, "abc"))
    assert [each.attempts for each in run.records] == [2, 2, 2]
    assert spaced(api.calls[None], 0.5)


def test_the_retry_timeout_goes_on_while_a_due_try_waits_for_the_rate_and_that_try_is_the_last() -> None:
    api = Api()

    def handle(record: Record) -> None:
        api.handle(record)
        raise ValueError("again")

    patient: dict[str, Any] = {"max_attempts": 9, "retry_backoff_ms": 1, "retry_timeout_ms": 200}
    run = HandlerTest(handle, **patient, rate_limit=RATE, on_failure="skip").run(record("a"))
    assert (run.outcomes, run.records[0].attempts) == (["skipped"], 2)
    assert api.calls[None][1] > 0.4, "it was due in time, and began later"
    page = " ".join((ROOT / "docs" / "limits.md").read_text().split())
    told = "The clock of `retry_timeout_ms`** goes on while a try waits for the rate"
    assert told in page
    description = HandlerSettings.model_fields["retry_timeout_ms"].description or ""
    assert "No try is due later than this" in description
    assert "may begin later" in description


def test_batches_are_whole_and_paid_for_afterwards() -> None:
    api = Api()
    test = HandlerTest(api.handle_batch, mode="batch", batch_max_records=4, rate_limit=RATE)
    assert test.run(*map(record, "abcdefgh")).outcomes == ["done"] * 8
    assert spaced(api.calls[4], 2), "four records at two a second"


def test_calls_are_counted_where_that_is_said() -> None:
    api = Api()
    rate = {**RATE, "counts": "calls"}
    HandlerTest(api.handle_batch, mode="batch", batch_max_records=4, rate_limit=rate).run(*map(record, "abcdefgh"))
    assert spaced(api.calls[4], 0.5)


def test_a_circuit_breaker_and_a_rate_limit_get_along() -> None:
    api = Api()

    def handle(record: Record) -> None:
        api.handle(record)
        if len(api.calls[None]) <= 4:
            raise ConnectionError

    breaker = {"exceptions": ["builtins.ConnectionError"], "min_calls": 2, "open_ms": 10_000}
    run = HandlerTest(handle, max_attempts=9, circuit_breaker=breaker, rate_limit=RATE).run(*map(record, "abcd"))
    assert run.outcomes == ["done"] * 4
    first, second, third, fourth, *rest = api.calls[None]
    assert (second - first, third - second, fourth - third) == pytest.approx((0.5, 10, 10), rel=0.05)
    assert len(rest) == 4
    assert spaced([time - rest[0] for time in rest], 0.5)


WANTED = {"name": "wanted", "on": "header:type", "one_of": ["order"]}


def mixed(count: int) -> list[Any]:
    """So many records for the handler, before each of them nine that a filter drops."""
    return [
        record(str(number), key="k", headers={"type": "order" if number % 10 == 9 else "test"})
        for number in range(count * 10)
    ]


@pytest.mark.parametrize("kind", ["handle", "handle_async", "handle_batch"])
@pytest.mark.parametrize("limit", [RATE, {**RATE, "per": "key"}, {**RATE, "counts": "calls"}])
def test_records_that_a_filter_drops_take_no_token(kind: str, limit: dict[str, Any]) -> None:
    if kind == "handle_batch" and limit.get("per") == "key":
        return
    api = Api()
    more: dict[str, Any] = {"mode": "batch", "batch_max_records": 5} if kind == "handle_batch" else {}
    run = HandlerTest(getattr(api, kind), rate_limit=limit, filters=[WANTED], **more).run(*mixed(6))
    assert Counter(run.outcomes) == {"filtered": 54, "done": 6}
    (times,) = api.calls.values()
    assert len(times) == 6
    assert spaced(times, 0.5), times


def test_a_record_that_cannot_be_decoded_takes_no_token() -> None:
    api = Api()
    given = [record("x") if number % 10 else record("1") for number in range(41)]
    run = HandlerTest(api.handle, value="json", on_undecodable="skip", rate_limit=RATE).run(*given)
    assert Counter(run.outcomes) == {"skipped": 36, "done": 5}
    assert spaced(api.calls[None], 0.5)


def test_a_revoke_finds_what_waits_undone() -> None:
    run = HandlerTest(Api().handle, rate_limit=RATE).run(*map(record, "abc"), revoke_at=1)
    assert run.outcomes == ["done", "done", "unhandled"]


@pytest.mark.parametrize(
    ("wrong", "refusal"),
    [
        ({"per_second": 0}, "handler.rate_limit.per_second = 0"),
        ({"per_second": float("nan")}, "handler.rate_limit.per_second"),
        ({"per_second": "5"}, "handler.rate_limit.per_second"),
        ({"burst": 0}, "handler.rate_limit.burst = 0"),
        ({"per": "host"}, 'handler.rate_limit.per = "host"'),
        ({"counts": "bytes"}, "handler.rate_limit.counts"),
        ({"header": "tenant"}, 'handler.rate_limit.header = "tenant": set, but per = "service" looks at no key'),
        ({"per": "worker", "members": 2}, "handler.rate_limit.members = 2: set, but nothing is divided by it"),
        ({"members": 0}, "handler.rate_limit.members = 0"),
        ({"rate": 5}, "handler.rate_limit.rate: unknown setting"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(wrong: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ConfigError) as refused:
        HandlerTest(lambda record: None, rate_limit={**RATE, **wrong}).run(record("a"))
    assert refusal in str(refused.value)


def test_keys_are_refused_beside_batches() -> None:
    with pytest.raises(ConfigError, match=r"handler.rate_limit.*a batch has records of many keys"):
        HandlerTest(Api().handle_batch, mode="batch", rate_limit={**RATE, "per": "key"}).run(record("a"))
