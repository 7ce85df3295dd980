"""What lies outside the process is what commit 645c62f wrote, byte for byte, and what that one wrote is read.

`tests/golden` has its files, the inputs, and how the files are made. Where today's bytes are other ones on purpose, a
test says so in its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kunicorn import __version__
from kunicorn.commands.dlq_topic import Replayed
from kunicorn.errors import ConfigError
from kunicorn.group.assignors import ASSIGNORS
from kunicorn.group.protocol import Subscription
from kunicorn.handler import dead_letters
from kunicorn.handler.columns import SCHEMA
from kunicorn.handler.config import RetryTopic
from kunicorn.handler.decode import Undecodable
from kunicorn.handler.outcome import BatchError, DeadLetter, Retry
from kunicorn.handler.record import Record
from kunicorn.ipc import bitmap
from kunicorn.ipc.ledger import Ledger
from kunicorn.kafka.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kunicorn.pipeline.export import _Known
from kunicorn.pipeline.lake.columns import Form
from kunicorn.pipeline.plan import as_json
from kunicorn.pipeline.state import Counts, Run, Runs, RunState
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.stream_source import _Place
from kunicorn.pipeline.tasks import outcomes
from kunicorn.pipeline.tasks.in_hand_file import died_in_hand, take_up
from kunicorn.positions import OffsetRange, Position, TopicPartition
from kunicorn.worker.produce.sender import NotDelivered
from tests.golden import inputs, written
from tests.golden.make import FILES
from tests.golden.written import PLACE, Code, Table, message_of, state_of, subscription_of, told


def _run_state(*, last_busy: float, **known: Any) -> RunState:
    """Rounds over all partitions had a time that their tasks were at work: paces are the partitions' own since."""
    return RunState(**known)


def _save_export(directory: str, state: Any, form: tuple[bool, str, str]) -> None:
    _Known(Directory(directory), Form(*form), SCHEMA).save(state)


def _batch_error(reason: str) -> BaseException:
    return BatchError(reason, done=2)


OUR_EXCEPTIONS: dict[str, Callable[[str], BaseException]] = {
    "DeadLetter": DeadLetter,
    "Retry": Retry,
    "BatchError": _batch_error,
    "Undecodable": Undecodable,
    "NotDelivered": NotDelivered,
}
TODAY = Code(
    ledger=Ledger,
    position=Position,
    done_text=bitmap.written,
    replayed=Replayed,
    record=Record,
    cause=dead_letters.Cause,
    cause_of=dead_letters.cause_of,
    dead_letters=dead_letters.dead_letters,
    retries=dead_letters.retries,
    retry_topic=RetryTopic,
    ours=OUR_EXCEPTIONS,
    topic_partition=TopicPartition,
    assignors=ASSIGNORS,
    subscription=Subscription,
    encode_subscription=encode_subscription,
    encode_assignment=encode_assignment,
    offset_range=OffsetRange,
    run_state=_run_state,
    counts=Counts,
    run=Run,
    runs=Runs,
    save_export=_save_export,
    offsets_as_json=as_json,
    take_up=take_up,
    directory=Directory,
    outcome_schema=outcomes.SCHEMA,
)
GOLDEN: dict[str, Table] = {file.stem: json.loads(file.read_text()) for file in FILES.glob("*.json")}
MANIFESTS: dict[str, list[str]] = {**GOLDEN["jobs"]["manifests"], "an export's": GOLDEN["jobs"]["export"]}
RENAMED = {
    f"kunicorn.{module}.{name}": f"kunicorn.{name}"
    for module, names in {"outcomes": ("DeadLetter", "Retry", "BatchError"), "decoding": ("Undecodable",)}.items()
    for name in names
}
"""The header `kunicorn-error-type` of exceptions of ours, then and now: users import them from `kunicorn` itself."""


def test_the_files_are_those_of_the_inputs() -> None:
    assert {file.name for file in FILES.iterdir()} == {f"{name}.json" for name in written.everything(TODAY)}
    for file in FILES.iterdir():
        assert written.as_file(json.loads(file.read_text())) == file.read_text()


# -- commits


def test_the_metadata_of_commits_is_the_same_but_names_the_offset_that_what_is_done_ahead_is_beside() -> None:
    """And of which topic, where members know its id. A member of 645c62f does what was done ahead again."""
    commits = written.commits(TODAY)
    assert commits["replayed letters"] == GOLDEN["commits"]["replayed letters"]
    assert commits["done ahead"] == {
        state: text.replace("kunicorn:done:1:", f"kunicorn:done:2:{inputs.DONE_AHEAD[state][0]}::")
        for state, text in GOLDEN["commits"]["done ahead"].items()
    }


@pytest.mark.parametrize("state", inputs.DONE_AHEAD)
@pytest.mark.parametrize("end", ["", "\0"], ids=["as a member commits it", "as a transaction commits it"])
def test_what_is_done_ahead_is_read_from_commits(state: str, end: str) -> None:
    first, done = inputs.DONE_AHEAD[state]
    expected = {offset for offsets in done for offset in offsets if first <= offset < first + bitmap.WINDOW}
    text = GOLDEN["commits"]["done ahead"][state]
    assert bitmap.read(first, text + end if text else text) == expected
    assert bitmap.partitions(text) is None, "so that what this commit becomes is read there, too"


@pytest.mark.parametrize("text", GOLDEN["commits"]["done ahead"].values(), ids=GOLDEN["commits"]["done ahead"].keys())
def test_where_a_commit_tells_the_number_of_partitions_the_rest_stands_behind_it_unchanged(text: str) -> None:
    """Only groups that began with today's code and `auto_offset_reset = "latest"` tell it. A member of 645c62f does not
    look behind it: what was done ahead it does again."""
    assert bitmap.with_partitions(None, text) == text
    assert bitmap.with_partitions(12, text) == f"kunicorn:partitions:12 {text}".strip()


@pytest.mark.parametrize("letters", inputs.REPLAYED)
def test_letters_that_were_replayed_are_not_replayed_again(letters: str) -> None:
    text = GOLDEN["commits"]["replayed letters"][letters]
    replayed = Replayed(2, text)
    carried = [each for each in inputs.REPLAYED[letters] if f"{each.start}-{each.stop - 1}" in text.split(",")]
    assert carried == inputs.REPLAYED[letters][: len(carried)]
    assert all(offset in replayed for each in carried for offset in each)
    assert replayed.metadata() == text


# -- letters


HALF = "failure: half a character"
"""A message that is no text: what is left of bytes that were none."""
ALIKE = {name for name in GOLDEN["letters"] if "with headers under our names" in name}
"""Of a record whose producer has written a header `kunicorn-x`."""


def _letters() -> dict[str, Table]:
    """What today's code sends; without the lines of ~ and ^ that Python 3.13 puts below the lines of a stack."""

    def plain(key: str, value: Any) -> Any:
        if key != "kunicorn-error-stack":
            return value
        return "\n".join(line for line in value.split("\n") if not line or line.strip("~^ "))

    return {
        name: {**sent, "headers": [[key, plain(key, value)] for key, value in sent["headers"]]}
        for name, sent in written.letters(TODAY).items()
    }


def _with_todays_names(sent: Table) -> Table:
    headers = [
        [key, RENAMED.get(value, value) if key == "kunicorn-error-type" else value] for key, value in sent["headers"]
    ]
    return {**sent, "headers": headers}


def test_letters_are_the_same_but_for_the_names_of_our_own_exceptions() -> None:
    letters = _letters()
    assert letters.keys() == GOLDEN["letters"].keys()
    others = {name for name in letters if letters[name] != GOLDEN["letters"][name]} - {HALF} - ALIKE
    assert others == {
        "failure: the handler asks for a dead letter",
        "failure: the handler asks for a retry",
        "failure: a record of a batch",
        "failure: no JSON",
    }
    for name in others:
        assert letters[name] == _with_todays_names(GOLDEN["letters"][name])


def test_of_a_message_that_is_no_text_the_letter_says_what_it_was_where_it_had_a_question_mark() -> None:
    was, now = GOLDEN["letters"][HALF], _letters()[HALF]
    assert [header for header in was["headers"] if header not in now["headers"]] == [["kunicorn-error-message", "caf?"]]
    assert [header for header in now["headers"] if header not in was["headers"]] == [
        ["kunicorn-error-message", r"caf\udce9"]
    ]
    assert {**was, "headers": None} == {**now, "headers": None}


def test_headers_that_only_begin_as_ours_do_stay_where_they_were_dropped() -> None:
    letters = _letters()
    for name in ALIKE:
        was, now = GOLDEN["letters"][name], letters[name]
        assert [key for key, _ in now["headers"] if key not in dict(was["headers"])] == ["kunicorn-x"]
        assert [pair for pair in now["headers"] if pair[0] != "kunicorn-x"] == was["headers"]
        assert {**was, "headers": None} == {**now, "headers": None}


@pytest.mark.parametrize("name", [name for name, sent in GOLDEN["letters"].items() if ".retry." not in sent["topic"]])
def test_a_dead_letter_is_read(name: str) -> None:
    headers = [(key, told(value)) for key, value in GOLDEN["letters"][name]["headers"]]
    text = {key: value.decode() for key, value in headers if value is not None and key.startswith("kunicorn-")}
    read = dead_letters.read(headers)
    assert (read.topic, read.partition, read.offset, read.group) == (*PLACE, inputs.GROUP)
    assert read.cause == dead_letters.Cause(
        text["kunicorn-error-type"],
        text["kunicorn-error-message"],
        text["kunicorn-error-stack"],
        int(text["kunicorn-attempts"]),
    )
    assert (read.time_ms, read.replays) == (inputs.NOW_MS, 2 if "under our names" in name else 0)


@pytest.mark.parametrize("record", inputs.RECORDS)
@pytest.mark.parametrize(("which", "tries"), [("first", 3), ("second", 6)])
def test_a_record_in_a_retry_topic_is_known_by_where_it_was_first(record: str, which: str, tries: int) -> None:
    sent = GOLDEN["letters"][f"record: {record}; in its {which} retry topic"]
    headers = [(key, told(value)) for key, value in sent["headers"]]
    again = {"key": None, "value": None, "headers": headers, "timestamp": sent["timestamp"]}
    waiting = Record.of(message_of(again, (sent["topic"], 0, 5)))
    origin = waiting.origin
    assert (origin.topic, origin.partition, origin.offset) == PLACE
    assert (origin.timestamp, origin.attempts) == (inputs.RECORDS[record]["timestamp"], tries)
    assert waiting.idempotency_key == "orders-3-41"


# -- the classic protocol


def test_what_members_tell_one_another_is_the_same() -> None:
    assert written.classic(TODAY) == GOLDEN["classic"]


@pytest.mark.parametrize("assignor", inputs.ASSIGNORS)
@pytest.mark.parametrize("member", inputs.SUBSCRIPTIONS)
def test_a_members_subscription_is_read(assignor: str, member: str) -> None:
    data = bytes.fromhex(GOLDEN["classic"]["subscriptions"][assignor][member])
    meant = subscription_of(TODAY, assignor, inputs.SUBSCRIPTIONS[member])
    read = decode_subscription(assignor, "a member", data)
    assert (read.topics, read.owned) == (tuple(sorted(meant.topics)), tuple(sorted(meant.owned)))
    assert (read.generation, read.rack, read.user_data) == (meant.generation, meant.rack, meant.user_data)


@pytest.mark.parametrize("assignment", inputs.ASSIGNMENTS)
def test_an_assignment_is_read(assignment: str) -> None:
    data = bytes.fromhex(GOLDEN["classic"]["assignments"][assignment])
    assert decode_assignment(data) == tuple(sorted(TODAY.tps(inputs.ASSIGNMENTS[assignment])))


# -- jobs


@pytest.mark.parametrize("part", ["stream", "outcomes"])
def test_what_jobs_write_is_the_same(part: str) -> None:
    assert written.jobs(TODAY)[part] == GOLDEN["jobs"][part]


def test_what_a_task_has_in_hand_is_the_same_with_the_number_of_sparks_try_behind_it() -> None:
    assert written.jobs(TODAY)["hands"] == {hand: f"{cells} 0" for hand, cells in GOLDEN["jobs"]["hands"].items()}


def test_manifests_are_the_same_but_for_the_version_and_four_lines_in_place_of_the_time_at_work() -> None:
    jobs = written.jobs(TODAY)
    # Those of exports did not say who wrote them.
    first, by, *rest = jobs["export"]
    assert by == f' "kunicorn": "{__version__}",\n'
    for name, lines in {**jobs["manifests"], "an export's": [first, *rest]}.items():
        *before, busy, end = (line.replace('"0.1.0"', f'"{__version__}"') for line in MANIFESTS[name])
        assert busy.startswith(' "last_busy": ')
        *same, put, last = lines
        assert re.fullmatch(r' "put": "[0-9a-f]{32}"\n', put)
        assert [*same, last] == [*before, ' "filtered": 0,\n', ' "tiles": [],\n', ' "topics": {},\n', end]


@pytest.mark.parametrize("name", inputs.RUNS)
def test_a_manifest_with_the_topics_ids_is_read_as_the_run_that_it_was(name: str) -> None:
    run = inputs.RUNS[name]
    state = RunState.from_json({**json.loads("".join(MANIFESTS[name])), "topics": {}})
    assert state.seconds == round(run.get("seconds", 0.0), 3)
    assert state.as_json() == state_of(TODAY, run).as_json()
    assert state.left == state_of(TODAY, run).left
    assert state.underway == state_of(TODAY, run).underway, "it is begun again under the same names"


@pytest.mark.parametrize("name", inputs.RUNS)
def test_a_manifest_in_its_place_of_that_time_is_no_run_of_today_and_stays_as_it_is(tmp_path: Path, name: str) -> None:
    """Manifests have versions since then, so that of two processes one goes on: there is no run to resume."""
    manifest = tmp_path / inputs.RUN_ID / "manifest.json"
    manifest.parent.mkdir()
    manifest.write_text("".join(MANIFESTS[name]))
    with pytest.raises(ConfigError, match=f"there is no run '{inputs.RUN_ID}'"):
        Runs(str(tmp_path)).read(inputs.RUN_ID)
    assert manifest.read_text() == "".join(MANIFESTS[name])


def test_a_stream_goes_on_from_a_checkpoint_without_the_topics_ids() -> None:
    stream = GOLDEN["jobs"]["stream"]
    place = _Place.of(stream)
    assert place.offsets == {TopicPartition(*tp): at for tp, at in inputs.STREAM.items()}
    assert (place.topics, place.pieces) == ({}, None)
    assert place.as_json() == {**stream, "@topic_ids": {}, "@min_partitions": None}


@pytest.mark.parametrize("hand", inputs.HANDS)
def test_what_a_task_died_with_is_read(tmp_path: Path, hand: str) -> None:
    name, *cells = GOLDEN["jobs"]["hands"][hand].split(" ")
    file = tmp_path / f"{name}{'0' * 32}.cells"
    file.parent.mkdir(parents=True)
    file.write_bytes(memoryview(b"".join(int(cell).to_bytes(8, "little", signed=True) for cell in cells)))
    following, stop = inputs.HANDS[hand]
    assert died_in_hand(Directory(str(tmp_path))) == [f"orders-3@{following}"]
    again = take_up(OffsetRange(*inputs.TASK), Directory(str(tmp_path)))
    assert again.died_with == [(following, following + 1 if stop < 0 else stop)]
    again.over()
