"""`kunicorn status` on a screen, from what a service answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import orjson
import pytest

from kunicorn.commands.status import ServiceStatus, address, ask, say_status
from kunicorn.errors import ConfigError
from kunicorn.observe.status import Status
from kunicorn.settings import HttpSettings, Settings
from tests.fakes.answering import Answer, answering
from tests.fakes.complete_settings import settings_of
from tests.unit.observe.snapshots import assigned, group, partition, status, worker


def answer(snapshot: Status) -> Any:
    return json.loads(orjson.dumps(snapshot))


def screen(snapshot: Status, before: Status | None = None) -> str:
    return "\n".join(ServiceStatus(answer(snapshot), answer(before) if before is not None else None).lines())


def test_the_member_its_workers_and_its_lag_are_shown() -> None:
    shown = screen(status())
    assert "kunicorn 1.2.3, pid 1, up 1m40s" in shown
    assert "group    shop: stable, generation 7, member m-1, last heartbeat 0.4s ago" in shown
    assert "2 rebalances, the last 20s ago: a member joined, completed in 1.0s" in shown
    assert "lag      20 records, the oldest 1.5s old" in shown
    assert "2 partitions: 2 running" in shown


def test_a_member_that_has_not_been_answered_yet_has_no_last_heartbeat() -> None:
    joining = group(state="joining", generation=-1, member_id="", heartbeat_age=None)
    assert "group    shop: joining, generation -1, member none yet, no heartbeat yet" in screen(status(group=joining))


def test_a_lag_that_is_not_known_is_not_shown_as_none() -> None:
    shown = screen(status(partitions=(partition(0), partition(1, lag=None, lag_seconds=None))))
    assert "lag      10 records, the oldest 1.5s old; not known of 1 of 2 partitions" in shown


def test_a_partition_that_does_not_run_is_shown_with_its_reason() -> None:
    halted = partition(4, state="halted", reason="ValueError at offset 90")
    shown = screen(status(partitions=(partition(0), halted)))
    assert "orders-4   halted  5.0s        90   10  ValueError at offset 90" in shown
    assert "orders-0" not in shown


def test_of_a_reason_with_a_traceback_the_screen_has_its_first_line() -> None:
    halted = partition(4, state="halted", reason="KeyError: 'idd'\nTraceback (most recent call last):\n  File")
    shown = screen(status(partitions=(halted,)))
    assert "KeyError: 'idd'" in shown
    assert "Traceback" not in shown


def test_rates_come_from_two_looks_and_not_across_a_restart() -> None:
    before = status(uptime=100.0, workers=(worker(handled=500),))
    assert "150.0" in screen(status(uptime=102.0, workers=(worker(handled=800),)), before)
    assert "150.0" not in screen(status(pid=2, uptime=102.0, workers=(worker(handled=800),)), before)
    # In a container the next service is PID 1, too: all that it has handled would be that of a millisecond.
    assert "300,000.0" not in screen(status(uptime=2.0, workers=(worker(handled=800),)), before)


def test_without_a_group_the_progress_of_the_replay_is_shown() -> None:
    assert "assign   0 of 2 partitions are finished" in screen(assigned())


def test_a_problem_is_shown_and_cannot_drive_the_terminal() -> None:
    assert "PROBLEM  no broker \\x1b[31m" in screen(status(problem="no broker \x1b[31m"))


def test_an_outage_is_shown_as_a_problem() -> None:
    assert "PROBLEM  no broker answered: one:9092" in screen(status(outage="no broker answered: one:9092 is refused"))
    assert "PROBLEM" not in screen(status())


@pytest.fixture
def stranger() -> Iterator[str]:
    """Another service, which answers 404 at /status and something else below /other."""

    def strange(to: BaseHTTPRequestHandler, _: bytes) -> Answer:
        return Answer(b'{"fine": true}', 200 if to.path.startswith("/other") else 404)

    with answering(strange) as url:
        yield url


def test_whoever_is_not_the_service_is_named_with_what_to_do(stranger: str) -> None:
    with pytest.raises(ConfigError, match="answers 404: another service"):
        ask(stranger)
    with pytest.raises(ConfigError, match="is not kunicorn's; correct --url"):
        ask(f"{stranger}/other")
    with pytest.raises(ConfigError, match=r"no service answers at http://127\.0\.0\.1:1"):
        say_status("http://127.0.0.1:1", print, every=None, as_json=False)
    with pytest.raises(ConfigError, match="is no address of a service"):
        ask("file:///etc/passwd")


def test_who_watches_a_service_that_restarts_is_told_once_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    body = orjson.dumps(status())
    answers = iter([Answer(body), Answer(b"", 502), Answer(b"", 502), Answer(body), Answer(b"", 502)])
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 3:
            raise KeyboardInterrupt

    with answering(lambda *_: next(answers, Answer(body))) as url, pytest.raises(KeyboardInterrupt):
        say_status(url, say, every=0.001, as_json=True)
    assert [json.loads(line)["pid"] for line in said] == [1, 1, 1]
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2, "once for each time that it was away"
    assert all("/status answers 502: " in line and line.endswith("It is asked again") for line in told)


def test_what_the_service_says_of_a_name_that_it_does_not_go_by_is_passed_on() -> None:
    words = b"not a name of this service: ask by its address, or see http.allowed_hosts"
    refusal = Answer(words, 403, {"Content-Type": "text/plain; charset=utf-8"})
    with answering(lambda *_: refusal) as url, pytest.raises(ConfigError, match=r"answers 403: not a name .*; correct"):
        ask(url)


@pytest.mark.parametrize(
    ("http", "url"),
    [
        (HttpSettings(), "http://127.0.0.1:9400"),
        (HttpSettings(host="10.0.0.7", port=80), "http://10.0.0.7:80"),
        (HttpSettings(host="::1"), "http://[::1]:9400"),
        (HttpSettings(host="::"), "http://[::1]:9400"),
    ],
)
def test_the_address_is_that_of_the_settings(http: HttpSettings, url: str) -> None:
    assert address(with_http(http)) == url


@pytest.mark.parametrize("http", [HttpSettings(enabled=False), HttpSettings(port=0)])
def test_a_service_that_cannot_be_asked_is_told(http: HttpSettings) -> None:
    with pytest.raises(ConfigError, match=r"http\.(enabled|port) is"):
        address(with_http(http))


def with_http(http: HttpSettings) -> Settings:
    return settings_of(group={"id": "shop"}, http=http.model_dump())


def test_a_refusal_whose_words_break_off_is_told_by_its_code() -> None:
    refused = Answer(b"40\r\nnot", 403, {"Content-Type": "text/plain", "Transfer-Encoding": "chunked"})
    with answering(lambda *_: refused) as url, pytest.raises(ConfigError, match="answers 403: another service"):
        ask(url)


def test_an_answer_that_breaks_off_is_not_taken_for_another_services() -> None:
    with (
        answering(lambda *_: Answer(b'{"partitions": [', headers={"Content-Length": "90"})) as url,
        pytest.raises(ConfigError, match=r"no service answers at .*IncompleteRead"),
    ):
        ask(url)
