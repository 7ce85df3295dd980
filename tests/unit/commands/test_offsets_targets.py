"""What the command line of a reset may say, and what it is told when it says something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from kunicorn.commands.offsets import FromFile, Options, ShiftBy, ToDatetime, ToOffset, chosen
from kunicorn.errors import ConfigError
from kunicorn.positions import EARLIEST, LATEST, TopicPartition

NOW_MS = 1_700_000_000_000
ORDERS = [TopicPartition("orders", number) for number in range(4)]
EVERYTHING = [*ORDERS, TopicPartition("refunds", 0)]


@pytest.mark.parametrize(
    ("options", "target"),
    [
        (Options(to_earliest=True), ToOffset(EARLIEST)),
        (Options(to_latest=True), ToOffset(LATEST)),
        (Options(to_datetime="2h"), ToDatetime(NOW_MS - 7_200_000)),
        (Options(to_datetime="2023-11-14T23:13:20+01:00"), ToDatetime(NOW_MS)),
        (Options(shift_by=-5), ShiftBy(-5)),
        (Options(shift_by=0), ShiftBy(0)),
        (Options(to_offset=0), ToOffset(0)),
    ],
)
def test_each_option_names_its_target(options: Options, target: object) -> None:
    assert options.target(NOW_MS) == target


@pytest.mark.parametrize(
    ("options", "given"),
    [
        (Options(), "given: nothing"),
        (Options(to_earliest=True, to_offset=0), "given: --to-earliest and --to-offset"),
        (Options(shift_by=0, to_latest=True), "given: --to-latest and --shift-by"),
    ],
)
def test_none_and_several_are_refused(options: Options, given: str) -> None:
    with pytest.raises(ConfigError, match=given):
        options.target(NOW_MS)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ConfigError, match="--to-datetime '2026-01-31T00:00:00' is neither a time with its zone"):
        Options(to_datetime="2026-01-31T00:00:00").target(NOW_MS)


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ([], EVERYTHING),
        (["orders"], ORDERS),
        (["orders:1-2", "refunds:0"], [ORDERS[1], ORDERS[2], EVERYTHING[4]]),
        (["orders:3", "orders:3"], [ORDERS[3]]),
    ],
)
def test_topics_and_partitions_are_chosen_as_in_the_settings(named: list[str], found: list[TopicPartition]) -> None:
    assert chosen(EVERYTHING, named) == found


@pytest.mark.parametrize("named", ["ordres", "orders:4", "orders:2-9", "refunds:1"])
def test_partitions_that_the_group_does_not_consume_are_refused_with_what_it_has(named: str) -> None:
    with pytest.raises(ConfigError, match=f"--topic '{named}' names partitions .* it has orders:0-3, refunds:0$"):
        chosen(EVERYTHING, [named])


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--topic 'orders:3-1': the range ends before it begins"):
        chosen(EVERYTHING, ["orders:3-1"])


@pytest.mark.parametrize(
    "text",
    [
        "orders,0,12\n\n# a note\n orders , 1 , 0 \n",
        '"orders",0,12\n"orders",1,0\n',
        "\ufefforders,0,12\norders,1,0\n",
        '{"partitions": [{"topic": "orders", "partition": 0, "committed": 12},'
        ' {"topic": "orders", "partition": 1, "committed": 0}, {"topic": "x", "partition": 0, "committed": null}]}',
    ],
    ids=["plain", "quoted", "with a byte order mark", "json"],
)
def test_a_file_names_an_offset_for_each_partition(tmp_path: Path, text: str) -> None:
    path = tmp_path / "offsets"
    path.write_text(text, encoding="utf-8")
    assert Options(from_file=path).target(NOW_MS) == FromFile({ORDERS[0]: 12, ORDERS[1]: 0})


GOOD_AND = '{"partitions": [{"topic": "orders", "partition": 0, "committed": 5}, %s]}'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("orders,0\n", "line 1: not topic,partition,offset"),
        ("orders,0,1\norders,x,1\n", "line 2: not topic,partition,offset"),
        ("orders,0,-1\n", "line 1: not topic,partition,offset"),
        ("orders,0,1\norders,0,2\n", "line 2: orders-0 is named twice"),
        (f"orders,0,1\n{'9' * 200_000},0,1\n", "line 2: field larger than field limit"),
        (f"orders,0,{'9' * 5_000}\n", "line 1: not topic,partition,offset"),
        ("", "names no partition"),
        ("{}", "is not what `kunicorn offsets show --json` writes"),
        (
            '{"partitions": 3}',
            "is not what `kunicorn offsets show --json` writes .*; save that, or lines such as orders,0,1",
        ),
        (GOOD_AND % '{"topic": "orders", "partition": 1, "committed": "12"}', "orders-1: '12' is no offset"),
        (GOOD_AND % '{"topic": "orders", "partition": 1, "committed": -1}', "orders-1: -1 is no offset"),
        (GOOD_AND % '{"topic": "orders", "partition": 1, "committed": true}', "orders-1: True is no offset"),
        (GOOD_AND % '{"topic": "orders", "partition": 1.5, "committed": 7}', r"is not what .*\(partition 1\.5\)"),
        (GOOD_AND % '{"topic": "orders", "partition": 1e999, "committed": 7}', r"is not what .*\(partition inf\)"),
        (GOOD_AND % '{"topic": "orders", "partition": 0, "committed": 7}', "orders-0 is named twice"),
    ],
)
def test_a_file_that_says_something_else_is_refused_and_nothing_of_it_left_out(
    tmp_path: Path, text: str, why: str
) -> None:
    path = tmp_path / "offsets"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        Options(from_file=path).target(NOW_MS)


def test_a_file_of_another_encoding_is_told_as_the_settings_file_is(tmp_path: Path) -> None:
    path = tmp_path / "offsets"
    path.write_bytes(b"orders,0,1\n\xff")
    with pytest.raises(ConfigError, match=r"--from-file .*offsets is not UTF-8 at byte 11: save it as UTF-8$"):
        Options(from_file=path).target(NOW_MS)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--from-file .*absent cannot be read: No such file or directory$"):
        Options(from_file=tmp_path / "absent").target(NOW_MS)
