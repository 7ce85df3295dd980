"""One record through the handler at a desk; the record's fetching has tests beside a real broker."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message

from kunicorn.commands import replay_one
from kunicorn.errors import ConfigError, HandlerLoadError
from kunicorn.positions import TopicPartition
from kunicorn.settings import Settings
from kunicorn.text import as_json_text
from kunicorn.worker.fetching import own_fetcher
from tests.fakes.complete_settings import settings_of
from tests.fakes.handler_module import importable

HANDLERS = """
import json
from kunicorn import DeadLetter, NotDecodableYet, Retry, Send, Wait

SAID = []

def handle(record):
    order = json.loads(record.value)
    if order["total"] < 0:
        raise DeadLetter("a negative total")
    print("taken", order["total"])

handle.setup = lambda options: SAID.append(options)
handle.teardown = lambda: SAID.append("over")

async def handle_later(record):
    handle(record)

def handle_batch(batch):
    for record in batch:
        handle(record)

class Mute(Exception):
    def __str__(self):
        raise KeyError("name")

def handle_mute(record):
    raise Mute

def handle_half(record):
    raise ValueError("bad name " + chr(0xd83d))

def handle_busy(record):
    SAID.append("called")
    return Wait(30, "429 Too Many Requests")

handle_busy.teardown = lambda: SAID.append("over")

def handle_locked(record):
    return Retry("locked")

def handle_exit(record):
    raise SystemExit("no more")

def handle_away(record):
    SAID.append("called")
    raise ConnectionError("the database is away")

handle_away.teardown = lambda: SAID.append("over")

def without_registry(value):
    raise NotDecodableYet("the registry is away")

class KeepsOffsets:
    def load_offsets(self, partitions):
        return {}

    def handle(self, record):
        SAID.append(("moved to", record.offset + 1))

def handle_and_send(record):
    total = json.loads(record.value)["total"]
    yield Send("totals", key="k", value={"total": total})
    if total < 0:
        raise DeadLetter("a negative total")
    for number in range(30):
        yield Send("audit", value={"number": number}, headers={"of": record.topic})

def handle_as_it_came(record):
    SAID.append((record.leader_epoch, record.message.timestamp()))

class Unready:
    def on_assigned(self, partitions):
        SAID.append("asked")
        raise ConnectionError("no cache")

    def handle(self, record):
        SAID.append("called")

def handle_untidily(record):
    SAID.append("called")
    if record.value != b"{}":
        raise ValueError(record.value)

def leave():
    raise ConnectionError("is closed already")

handle_untidily.teardown = leave

def handle_by_a_program(record):
    import subprocess
    subprocess.run(["echo", "noise"], check=True)

def handle_columns(batch):
    assert [json.loads(value)["total"] for value in batch.column("value").to_pylist()] == [3]
"""


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importable(tmp_path, monkeypatch, "desk_shop", HANDLERS)


def settings(fetcher: str = "librdkafka", **handler: Any) -> Settings:
    own = {"entrypoint": "desk_shop:handle", **handler}
    return settings_of(kafka={"fetcher": fetcher}, handler=own, dead_letters={"topic": "dead"})


def message(value: bytes | None) -> Message:
    return Message(topic="orders", partition=3, offset=7, value=value, key=b"k", timestamp=(1, 1_700_000_000_000))


def told(value: bytes | None, **handler: Any) -> tuple[replay_one.Replayed, str]:
    own = settings(**handler)
    replayed = replay_one.replay(own, message(value))
    return replayed, "\n".join(replayed.lines())


@pytest.mark.parametrize("more", [{}, {"entrypoint": "desk_shop:handle_later"}])
def test_what_was_handled_is_told_with_its_record(more: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    replayed, text = told(b'{"total": 3}', **more)
    assert replayed.handled.outcome == "done"
    assert "record    orders-3@7, 2023-11-14T22:13:20.000Z" in text
    assert "outcome   done after " in text
    assert text.endswith("nothing was committed or sent")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "taken 3\n"), "standard output is the answer's"


def test_what_a_program_of_the_handlers_prints_is_no_part_of_the_answer(capfd: pytest.CaptureFixture[str]) -> None:
    replayed, _ = told(b"{}", entrypoint="desk_shop:handle_by_a_program")
    assert replayed.outcome == "done"
    assert capfd.readouterr() == ("", "noise\n")
    print("the answer", flush=True)
    assert capfd.readouterr() == ("the answer\n", "")


def no_broker_is_asked(*given: object) -> NoReturn:
    raise AssertionError("the replay fetches")


@pytest.mark.parametrize("handler", [{}, {"entrypoint": "desk_shop:handle_batch", "mode": "batch"}])
def test_a_service_with_our_own_fetcher_gets_the_one_record_and_none_behind_it(
    monkeypatch: pytest.MonkeyPatch, handler: dict[str, str]
) -> None:
    monkeypatch.setattr(own_fetcher, "own_fetcher", no_broker_is_asked)
    replayed = replay_one.replay(settings("own", **handler), message(b'{"total": 3}'))
    assert replayed.handled.outcome == "done"


def test_what_was_raised_is_told_with_the_users_frames_and_after_one_try() -> None:
    replayed, text = told(b"nonsense", max_attempts=5)
    assert isinstance(replayed.error, json.JSONDecodeError)
    assert replayed.handled.attempts == 1
    assert "desk_shop.py" in text
    assert "kunicorn/testing" not in text
    assert "try it 5 times" in text
    assert "its partition would halt before it: JSONDecodeError" in text
    told_json = json.loads(as_json_text(replayed.as_json()))
    assert (told_json["outcome"], told_json["value"], told_json["offset"]) == ("halted", "nonsense", 7)
    assert told_json["then"] == "try it 5 times before that"


JSON_IS_TRIED_ONCE = {"exceptions": ["json.JSONDecodeError"], "max_attempts": 1}


@pytest.mark.parametrize(
    ("handler", "tries"),
    [
        ({"failures": [JSON_IS_TRIED_ONCE]}, 1),
        ({"failures": [{**JSON_IS_TRIED_ONCE, "max_attempts": 7}]}, 7),
        ({"value": "json"}, 1),
        ({"entrypoint": "desk_shop:handle_exit"}, 1),
        ({"retry_timeout_ms": 10}, 1),
        ({"entrypoint": "desk_shop:handle_locked"}, 5),
    ],
    ids=["a rule", "a rule with more", "not decodable", "an exit", "no time for another", "Retry"],
)
def test_the_tries_that_are_told_are_those_that_the_service_would_make(handler: dict[str, Any], tries: int) -> None:
    lines = replay_one.replay(settings(max_attempts=5, **handler), message(b"nonsense")).lines()
    said = [line.split("try it ")[1].split(" times")[0] for line in lines if "times before that" in line]
    assert said == ([] if tries == 1 else [str(tries)])


@pytest.mark.parametrize(
    ("entrypoint", "shown"),
    [("handle_half", "error     ValueError: bad name \\ud83d"), ("handle_mute", "Mute: (its __str__ raised KeyError)")],
)
def test_an_exception_whose_message_cannot_be_written_is_told(entrypoint: str, shown: str) -> None:
    replayed, text = told(b"{}", entrypoint=f"desk_shop:{entrypoint}")
    assert shown in text
    told_json = as_json_text(replayed.as_json())
    assert shown.removeprefix("error     ") in json.loads(told_json)["error"]
    assert (text + told_json).encode()


def test_a_dead_letter_that_would_be_sent_is_shown() -> None:
    replayed, text = told(b'{"total": -1}')
    assert replayed.error is None
    assert "letter    would go to dead: kunicorn.DeadLetter: a negative total" in text
    _, text = told(b"nonsense", on_failure="dead_letter")
    assert "letter    would go to dead: json.decoder.JSONDecodeError" in text


def test_a_handler_beside_others_has_the_dead_letter_topic_that_one_of_them_asks_for() -> None:
    own = settings_of(
        handlers=[
            {"entrypoint": "desk_shop:handle_busy", "topics": ["refunds"], "on_failure": "dead_letter"},
            {"entrypoint": "desk_shop:handle", "topics": ["orders"]},
        ]
    )
    replayed = replay_one.replay(own, message(b'{"total": -1}'))
    assert replayed.outcome == "dead_letter"
    assert [each.topic for each in replayed.run.dead_letters] == ["g.dead-letters"]


@pytest.mark.parametrize(
    ("handler", "shown"),
    [
        ({"on_failure": "dead_letter"}, "letter    would go to dead: json.decoder.JSONDecodeError"),
        ({"max_attempts": 1, "retry_topic_delays_ms": [5000]}, "retry     would go to g.retry.5s"),
        ({"on_failure": "skip"}, "outcome   skipped"),
    ],
)
def test_no_log_says_that_the_record_went_where_it_would_go(
    caplog: pytest.LogCaptureFixture, handler: dict[str, Any], shown: str
) -> None:
    replayed, text = told(b"nonsense", **handler)
    assert shown in text
    assert caplog.text == ""
    named = [each["topic"] for each in replayed.as_json()["retries"]]
    assert named == (["g.retry.5s"] if "retry" in shown else [])


def test_a_program_is_told_the_topics_into_which_the_record_would_go() -> None:
    retried, _ = told(b"nonsense", max_attempts=1, retry_topic_delays_ms=[5000])
    given_up, _ = told(b"nonsense", on_failure="dead_letter")
    answers = [each.as_json() for each in (retried, given_up)]
    assert [answer["retries"] for answer in answers] == [[{"topic": "g.retry.5s"}], []]
    assert [[letter["topic"] for letter in answer["dead_letters"]] for answer in answers] == [[], ["dead"]]


def test_a_record_that_is_too_old_for_the_handler_is_no_failure_of_its() -> None:
    replayed, text = told(b'{"total": 3}', max_age_ms=1000, on_expired="dead_letter")
    assert (replayed.outcome, replayed.error, replayed.handled.attempts) == ("dead_letter", None, 0)
    assert "is older than handler.max_age_ms = 1000" in text
    replayed, _ = told(b'{"total": 3}', max_age_ms=1000)
    assert (replayed.outcome, replayed.handled.attempts) == ("filtered", 0)


def test_a_batch_handler_gets_a_batch_of_one_and_setup_and_teardown_run() -> None:
    replayed, _ = told(b'{"total": 3}', entrypoint="desk_shop:handle_batch", mode="batch")
    assert replayed.handled.outcome == "done"
    replayed, _ = told(b'{"total": 3}', entrypoint="desk_shop:handle_columns", mode="arrow")
    assert replayed.handled.outcome == "done"
    told(b'{"total": 3}', options={"currency": "EUR"})
    assert sys.modules["desk_shop"].SAID == [{"currency": "EUR"}, "over"]


def test_what_would_be_sent_is_shown_as_its_readers_would_decode_it_and_of_a_failure_nothing() -> None:
    own = settings(entrypoint="desk_shop:handle_and_send")
    own = settings_of(**own.model_dump(exclude_unset=True), producing={"delivery": "at_least_once", "value": "json"})
    replayed = replay_one.replay(own, message(b'{"total": 3}'))
    lines = list(replayed.lines())
    assert "output    would go to totals: key k, value {'total': 3}" in lines
    assert "outputs   11 more; --json has them all" in lines
    told_json = json.loads(as_json_text(replayed.as_json()))
    assert len(told_json["outputs"]) == 31
    first, second, *_ = told_json["outputs"]
    assert first == {"topic": "totals", "partition": None, "key": "k", "value": '{"total":3}', "headers": []}
    assert second["headers"] == [["of", "orders"]]
    failed = replay_one.replay(own, message(b'{"total": -1}'))
    assert (failed.outcome, failed.outputs) == ("dead_letter", [])


def test_the_handler_gets_the_record_as_it_came_from_the_broker() -> None:
    appended = TIMESTAMP_LOG_APPEND_TIME, 1_700_000_000_000
    came = Message(topic="orders", partition=3, offset=7, value=b"{}", timestamp=appended, leader_epoch=5)
    replay_one.replay(settings(entrypoint="desk_shop:handle_as_it_came"), came)
    (seen,) = sys.modules["desk_shop"].SAID
    assert seen == (5, appended)


def test_the_debugger_stands_where_the_handler_raised_before_its_teardown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("import sys\np sys.modules['desk_shop'].SAID\nwhere\nq\n"))
    replayed = replay_one.replay(settings(handler_timeout_ms=10_000), message(b"nonsense"), debug=True)
    said = capsys.readouterr().out
    assert "desk_shop.py(8)handle()" in said.replace("\n->", "")
    assert "[{}]" in said, "set up, and not torn down yet"
    assert replayed.error is not None
    assert sys.modules["desk_shop"].SAID == [{}, "over"]


def test_a_handler_that_has_its_record_wait_is_called_once() -> None:
    replayed, text = told(b"{}", entrypoint="desk_shop:handle_busy")
    assert sys.modules["desk_shop"].SAID == ["called", "over"]
    assert "outcome   waits after " in text
    assert "then      the service would call the handler again after 30 s: 429 Too Many Requests" in text
    assert replayed.error is None
    told_json = replayed.as_json()
    assert told_json["outcome"] == "waits"
    assert told_json["then"] == "call the handler again after 30 s: 429 Too Many Requests"


def test_a_circuit_breaker_that_the_one_failure_would_open_does_not_probe_the_handler() -> None:
    breaker = {"exceptions": ["builtins.ConnectionError"], "min_calls": 1}
    replayed, text = told(b"{}", entrypoint="desk_shop:handle_away", circuit_breaker=breaker)
    assert sys.modules["desk_shop"].SAID == ["called", "over"]
    assert isinstance(replayed.error, ConnectionError)
    assert "its partition would halt before it: ConnectionError" in text


def test_a_handler_that_does_not_take_its_partition_on_is_asked_once_and_told_as_one_that_cannot_be_set_up() -> None:
    with pytest.raises(HandlerLoadError, match=r"does not take on its partitions: on_assigned raised .*no cache"):
        told(b"{}", entrypoint="desk_shop:Unready")
    assert sys.modules["desk_shop"].SAID == ["asked"]


def test_what_teardown_raises_hides_neither_the_records_outcome_nor_what_the_handler_raised() -> None:
    replayed, text = told(b"{}", entrypoint="desk_shop:handle_untidily")
    assert (replayed.outcome, replayed.handled.attempts) == ("done", 1)
    assert isinstance(replayed.error, ConnectionError), "by which the command fails"
    assert "error     ConnectionError: is closed already" in text
    assert "in leave" in replayed.as_json()["traceback"]
    failed, _ = told(b"bad", entrypoint="desk_shop:handle_untidily", max_attempts=5)
    assert isinstance(failed.error, ValueError)
    assert failed.then == "try it 5 times before that"


def test_a_record_whose_decoder_is_away_ends_the_replay() -> None:
    replayed = replay_one.replay(settings(value="desk_shop:without_registry"), message(b"{}"))
    text = "\n".join(replayed.lines())
    assert replayed.handled.attempts == 0
    assert "outcome   waits after " in text
    assert "then      the service would try it again until what decodes (encodes) it is back" in text
    assert "error     NotDecodableYet: the registry is away" in text
    assert "times before that" not in text


def test_a_topic_that_no_handler_takes_is_refused_before_a_broker_is_asked() -> None:
    own = settings_of(handlers=[{"entrypoint": "desk_shop:handle", "topics": ["orders"]}])
    refused = "no handler takes topic 'g.dead-letters'.*dlq show"
    with pytest.raises(ConfigError, match=refused):
        replay_one.find(own, TopicPartition("g.dead-letters", 0), 12)
    letter = Message(topic="g.dead-letters", partition=0, offset=12, value=b"{}", timestamp=(1, 1_700_000_000_000))
    with pytest.raises(ConfigError, match=refused):
        replay_one.replay(own, letter)


def test_a_handler_that_cannot_be_loaded_is_told_as_the_service_would() -> None:
    with pytest.raises(HandlerLoadError, match="has no 'handel'"):
        told(b"", entrypoint="desk_shop:handel")


def test_a_handler_that_keeps_its_offsets_is_not_called_as_it_would_move_them_past_records() -> None:
    with pytest.raises(ConfigError, match=r"desk_shop:KeepsOffsets keeps its offsets itself.*HandlerTest"):
        told(b"{}", entrypoint="desk_shop:KeepsOffsets")
    assert sys.modules["desk_shop"].SAID == []
