"""Rates dealt out to workers by what they use: the decision, as a table."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kunicorn.errors import PeerError
from kunicorn.ipc.messages import Rates, RateUse
from kunicorn.kafka_errors import ErrorCode
from kunicorn.settings.limits import RateLimitSettings
from kunicorn.supervisor import rates
from kunicorn.supervisor.rates import RateShares, Use, deal

BUSY, IDLE = Use(10, waited=True), Use(0, waited=False)


@pytest.mark.parametrize(
    ("uses", "shares"),
    [
        ([], []),
        ([BUSY], [100]),
        ([IDLE], [100]),
        ([None, None], [50, 50]),
        ([BUSY, BUSY, BUSY, BUSY], [25, 25, 25, 25]),
        ([IDLE, IDLE], [50, 50]),
        ([BUSY, IDLE], [97.5, 2.5]),
        ([BUSY, IDLE, IDLE, IDLE], [96.25, 1.25, 1.25, 1.25]),
        ([None, IDLE], [97.5, 2.5]),
        ([BUSY, Use(20, waited=False)], [72.5, 27.5]),
        ([BUSY, Use(90, waited=False)], [50, 50]),
        ([BUSY, BUSY, Use(20, waited=False)], [36.67, 36.67, 26.67]),
        ([Use(20, waited=False), Use(40, waited=False)], [37.5, 62.5]),
        # A long call gave back what it had taken before.
        ([Use(-500, waited=False), BUSY], [2.5, 97.5]),
    ],
)
def test_whoever_waits_gets_what_the_others_leave(uses: list[Use | None], shares: list[float]) -> None:
    assert deal(100, uses) == pytest.approx(shares, rel=0.001)


@pytest.mark.parametrize("waited", [True, False])
@pytest.mark.parametrize("used", [0, 1, 33, 500])
@pytest.mark.parametrize("workers", [1, 3, 64])
def test_the_shares_are_the_rate_together_and_nobody_has_nothing(workers: int, used: float, waited: bool) -> None:
    uses: list[Use | None] = [Use(used * number % 70, waited=waited and number % 2 == 0) for number in range(workers)]
    shares = deal(100, uses)
    assert sum(shares) == pytest.approx(100)
    assert min(shares) >= 100 / workers * 0.05 * 0.999


class Played:
    """A worker's process, and what all of them were told, in order."""

    def __init__(self, pid: int, said: list[tuple[int, float]]) -> None:
        self.pid, self.ready_at, self.started_at = pid, 0.0, 0.0
        self.pong: Any = None
        self.pong_at: float | None = None
        self.dead = False
        self._said = said

    def is_dead(self) -> bool:
        return self.dead

    def send(self, message: Rates) -> None:
        self._said += [(self.pid, round(rate.per_second, 2)) for rate in message.rates]

    def answers(self, at: float, used: float, waits: int) -> None:
        self.pong, self.pong_at = SimpleNamespace(rates=[RateUse(0, used, waits)]), at


def shares_of(processes: list[Played], **limit: Any) -> RateShares:
    handler = SimpleNamespace(entrypoint="shop:handle", rate_limit=RateLimitSettings(**limit))
    in_force: Any = SimpleNamespace(
        settings=SimpleNamespace(
            every_handler=[handler],
            assigned=False,
            group=SimpleNamespace(id="shop"),
            kafka=SimpleNamespace(request_timeout_ms=1000),
        ),
        workers=SimpleNamespace(count=len(processes)),
    )
    pool: Any = SimpleNamespace(processes=lambda: processes)
    connections: Any = SimpleNamespace(member=SimpleNamespace(stable=True, generation=1), tokens=None)
    return RateShares(in_force, connections, pool)


def test_the_rate_follows_whoever_waits_and_is_given_up_before_it_is_given_away() -> None:
    said: list[tuple[int, float]] = []
    busy, idle = processes = [Played(1, said), Played(2, said)]
    shares = shares_of(processes, per_second=20)
    shares.deal()
    assert said == [(1, 10), (2, 10)], "nobody knows yet"
    for second in (1, 2):
        busy.answers(second, 10.0 * second, 5 * second)
        idle.answers(second, 0, 0)
        shares.deal()
    assert said[2:] == [(2, 0.5), (1, 19.5)]
    shares.deal()
    assert len(said) == 4, "what is the same is not told again"
    busy.dead = True
    shares.deal()
    assert said[4:] == [(2, 20)]


def test_members_divide_the_rate_and_keys_by_header_divide_it_evenly() -> None:
    said: list[tuple[int, float]] = []
    processes = [Played(1, said), Played(2, said)]
    shares = shares_of(processes, per_second=60, members=3, per="key", header="tenant")
    for second in (1, 2, 3):
        processes[0].answers(second, 10.0 * second, 5 * second)
        processes[1].answers(second, 0, 0)
        shares.deal()
    assert said == [(1, 10), (2, 10)]
    assert shares.first_share() == pytest.approx(1 / 6)
    assert [(each.per_second, each.members) for each in shares.status()] == [(20, 3)]


def test_a_limit_of_each_worker_or_of_a_records_key_is_dealt_to_nobody() -> None:
    said: list[tuple[int, float]] = []
    for per in ("worker", "key"):
        shares = shares_of([Played(1, said)], per_second=60, per=per)
        shares.deal()
        assert (said, shares.status()) == ([], ())


class Coordinator:
    """What it says of the group, one answer after the other; the last one for ever."""

    def __init__(self, *answers: int | PeerError | ErrorCode) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.forgotten = 0

    async def describe(self) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, PeerError):
            raise answer
        if isinstance(answer, ErrorCode):
            return SimpleNamespace(error=int(answer), members=())
        return SimpleNamespace(error=0 if answer else 69, members=[object()] * answer)

    def forget(self) -> None:
        self.forgotten += 1


def counted(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """By how many members the rate is divided, one number after the other, while it answers five questions."""

    async def close() -> None: ...

    monkeypatch.setattr(rates, "GroupAdmin", lambda *_: coordinator)
    monkeypatch.setattr(rates, "cluster_of", lambda *_: SimpleNamespace(close=close))
    for name in ("_DEAL_SECONDS", "_DESCRIBE_SECONDS", "_AGAIN_SECONDS"):
        monkeypatch.setattr(rates, name, 0)
    shares = shares_of([Played(1, [])], per_second=60)
    limit = RateLimitSettings(per_second=60)
    found: list[int] = []

    async def run() -> None:
        dealing, describing = map(asyncio.ensure_future, shares.works())
        while coordinator.asked < 5:
            if not found or found[-1] != shares.members(limit):
                found.append(shares.members(limit))
            await asyncio.sleep(0)
        found.append(shares.members(limit))
        dealing.cancel()
        describing.cancel()

    asyncio.run(run())
    return found


def test_members_are_counted_as_the_coordinator_says_and_the_last_number_stays_while_it_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = Coordinator(3, PeerError("not authorized"), 0, 5, 5)
    assert counted(coordinator, monkeypatch) == [1, 3, 5, 5]
    assert coordinator.forgotten == 1


def test_a_user_who_may_not_describe_the_group_is_told_once_that_the_rate_is_not_divided(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    coordinator = Coordinator(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert counted(coordinator, monkeypatch)[-1] == 1
    log = capfd.readouterr().err
    assert log.count("GROUP_AUTHORIZATION_FAILED (30); this user needs DESCRIBE on group 'shop'") == 1
    assert "rates are divided by 1" in log
    assert "set rate_limit.members" in log
