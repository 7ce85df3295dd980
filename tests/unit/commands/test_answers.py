"""Every command's answer has one form for people and one for programs, and both have the same facts."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from kunicorn.commands.control import Reply
from kunicorn.commands.dlq import summary
from kunicorn.commands.dlq_topic import Found
from kunicorn.commands.group_lag import GroupStanding, Standing
from kunicorn.commands.lag import Lag
from kunicorn.commands.leave import StaticMember
from kunicorn.commands.offsets import Move, Reset
from kunicorn.commands.topics.plan import Change, Plan, Role
from kunicorn.handler.dead_letters import Cause, Told
from kunicorn.handler.record import Record
from kunicorn.kafka.admin import Described, DescribedMember
from kunicorn.positions import TopicPartition
from kunicorn.testing import record
from kunicorn.testing.memory import message_of
from kunicorn.text import Answer, listed, tell
from tests.answers import names_in
from tests.markdown import ROOT

TP = TopicPartition("orders", 7)
POD = DescribedMember("m-1", "pod-0", "kunicorn", "/10.0.0.7", (TP,))
GROUP = GroupStanding("shop", "Stable", (POD,), (Standing(TP, 40, 10, 100, POD), Standing(TP, 4, 10, 100)))
MOVE = {"topic": "orders", "partition": 7, "committed": 40, "position": 41, "then": 51, "log_start": 10,
        "log_end": 100, "problem": ""}  # fmt: skip
RECORD = Record.of(message_of(record(b"\xff", topic="dead", offset=12, key=b"k", timestamp=1_700_000_000_000)))

HALF = json.loads('"\\ud83d"')
ODD = Record.of(message_of(record(b"x", topic="dead", offset=12, timestamp=1_700_000_000_000_000)))
LETTER = Told("orders", 3, 7, "shop", Cause("E", f"no {HALF}", HALF, 1), 1_700_000_000_000_000, 0, [(HALF, b"h")])

CREATED = Change("dead", Role.LETTERS, True, 12, 3, {"retention.ms": (None, "-1")})

ANSWERS: dict[str, tuple[Callable[[], Answer], tuple[str, ...]]] = {
    "offsets show": (lambda: GROUP,
                     ("group shop: Stable, 1 members", "pod-0 at 10.0.0.7", "6 offsets are not in the log")),
    "offsets reset": (lambda: Reset(GROUP, [Move(TP, 40, 40, 10)], ["retries"]), ("orders-7", "30 again", "retries")),
    "lag": (lambda: Lag(GROUP, {TP: 60.0}, {}, 5), ("60", "1m00s", "pod-0 at 10.0.0.7")),
    "leave": (lambda: StaticMember("shop", Described(0, "", "Stable", [POD]), POD),
              ("pod-0: m-1", "10.0.0.7", "1: orders-7")),
    "seek": (lambda: Reply({"ok": True, "said": "nothing was changed", "partitions": [MOVE]}, "--execute does it"),
             ("orders-7", "10 skipped", "nothing was changed", "--execute does it")),
    "topics plan": (lambda: Plan([CREATED], ["by hand"], 2),
                    ("dead", "dead letters", "12", "3", "retention.ms", "-1", "by hand", "2")),
    "dlq list": (lambda: summary("dead", [Found(0, 12, RECORD, None, "no header"), Found(0, 13, ODD, LETTER)], 9),
                 ("1 dead letter", "1700000000000000 ms since 1970", "no header", "0@13")),
    "dlq show": (lambda: Found(0, 12, RECORD, None, "no header"), ("no header", "2023-11-14T22:13:20Z", "k")),
    "dlq show of odd bytes": (lambda: Found(0, 12, ODD, LETTER, ""),
                              ("1700000000000000 ms since 1970", "\\ud83d")),
}  # fmt: skip


@pytest.mark.parametrize("command", ANSWERS)
def test_an_answer_is_text_for_people_and_one_object_for_programs(command: str) -> None:
    made, shown = ANSWERS[command]
    text, told = list[str](), list[str]()
    tell(made(), text.append, as_json=False)
    tell(made(), told.append, as_json=True)
    tell(made(), told.append, as_json=True, in_one_line=True)
    "\n".join([*text, *told]).encode()  # Half a character has no form in UTF-8, and would end the command.
    assert [each for each in shown if each not in "\n".join(text)] == []
    assert json.loads(told[0]) == json.loads(told[1]) != {}
    assert len(told[1].splitlines()) == 1


def test_what_another_client_calls_itself_does_not_drive_the_terminal() -> None:
    stranger = DescribedMember("m\x1b[2J", "pod\x1b[2J", "client\x1b[2J", "/10.0.0.7", (TP,))
    lines = StaticMember("shop", Described(0, "", "Stable", [stranger]), stranger).lines()
    assert [line for line in lines if not line.isprintable()] == []


def test_what_decides_over_a_reset_or_explains_a_lag_is_told_to_programs_too() -> None:
    reset = Reset(GROUP, [Move(TP, 40, 40, 10)], ["retries"]).as_json()
    assert (reset["members"], reset["kept"]) == (1, ["retries"])
    waiting = Lag(GROUP, {}, {"orders": 600_000}, 5).as_json()
    assert waiting["delays_ms"] == {"orders": 600_000}
    assert [each["loss"] for each in GROUP.as_json()["partitions"]] == [None, "6 offsets are not in the log any more"]


def test_programs_are_told_what_people_are_of_records_that_are_no_letters_and_of_the_time_of_those_that_are() -> None:
    stranger = Found(0, 12, RECORD, None, "no header")
    told = summary("dead", [stranger, Found(0, 13, ODD, LETTER)], 9).as_json()
    assert (told["first"], told["last"]) == (LETTER.time_ms, LETTER.time_ms)
    assert (told["foreign"], told["reasons"]) == (1, [{"why": "no header", "count": 1}])
    assert stranger.as_json()["why"] == "no header"
    assert [summary("dead", [], 9).as_json()[name] for name in ("first", "last")] == [None, None]


def row_of(command: str) -> str:
    """What the page of commands has of that command's object, with those that it is like or made of."""
    text = (ROOT / "docs" / "commands.md").read_text()
    page = text[text.index("## Answers for a program") : text.index("## Exit codes")]
    like = {"seek": "| `pause`, `resume`", "lag": "| `offsets show`", "dlq list": "| `dlq show`"}
    begins = ("| `" + command.partition(" of ")[0] + "`", like.get(command, "-"))
    return "".join(line for line in page.splitlines() if line.startswith(begins))


@pytest.mark.parametrize("command", ANSWERS)
def test_the_page_has_every_name_of_what_a_program_is_told(command: str) -> None:
    made, _ = ANSWERS[command]
    assert [name for name in names_in(made().as_json()) if f"`{name}`" not in row_of(command)] == []


def test_a_service_that_refuses_says_so_once_and_shows_the_moves() -> None:
    refused = Reply(
        {"ok": False, "said": "nothing was changed: it cannot be", "partitions": [MOVE]}, "--execute does it"
    )
    assert not any("nothing was changed" in line or "--execute" in line for line in refused.lines())
    assert refused.as_json()["said"] == "nothing was changed: it cannot be"


def test_a_reset_says_what_became_of_it() -> None:
    moves = [Move(TP, 40, 40, 10)]
    assert Reset(GROUP, moves).outcome.startswith(
        "nothing was changed; --execute does it, once its 1 members are stopped"
    )
    assert Reset(GROUP, moves, executed=True).outcome == (
        "done: 1 offsets are committed; the group goes on there when it is started"
    )
    assert Reset(GROUP, moves, executed=True).as_json()["executed"] is True


def test_a_list_of_thousands_stays_a_line() -> None:
    assert listed([]) == ""
    assert listed(range(3), 3) == "0 1 2"
    assert listed(range(10_000), 3, ", ") == "0, 1, 2 …"
