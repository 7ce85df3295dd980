"""[assign]: which partitions, from where, until when; and what it cannot go together with."""

from __future__ import annotations

from pathlib import Path

import pytest

from kunicorn.positions import TopicPartition
from kunicorn.settings import Settings
from kunicorn.settings.assign import CLIENTS_GROUP
from tests.unit.settings.files import LEAST, loaded, problems

WITHOUT_GROUP = """
[kafka]
bootstrap_servers = ["127.0.0.1:9092"]
[handler]
entrypoint = "shop.handlers:handle_order"
"""


def assigned(tmp_path: Path, lines: str) -> Settings:
    """Settings whose [assign] consists of these lines."""
    return loaded(tmp_path, f"{WITHOUT_GROUP}[assign]\n{lines}\n")


def refused(tmp_path: Path, lines: str) -> str:
    """The only problem of an [assign] that consists of these lines."""
    (only,) = problems(tmp_path, f"{WITHOUT_GROUP}[assign]\n{lines}\n")
    return only


def of(topic: str, *numbers: int) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for number in numbers}


def test_numbers_and_ranges_of_a_topic_add_up(tmp_path: Path) -> None:
    wanted = assigned(tmp_path, 'partitions = ["orders:0-3", "orders:7", "stock:1"]').assign.wanted
    assert wanted.numbered == of("orders", 0, 1, 2, 3, 7) | of("stock", 1)
    assert wanted.whole == frozenset()
    assert wanted.topics == ("orders", "stock")


def test_a_topic_alone_means_all_of_it_whatever_numbers_stand_beside_it(tmp_path: Path) -> None:
    wanted = assigned(tmp_path, 'partitions = ["refunds:1", "refunds"]').assign.wanted
    assert (wanted.whole, wanted.numbered) == (frozenset({"refunds"}), frozenset())


def test_neither_group_nor_topics_have_to_be_named(tmp_path: Path) -> None:
    settings = assigned(tmp_path, 'partitions = ["orders"]')
    assert settings.assigned
    assert (settings.group.id, settings.group.topics) == (CLIENTS_GROUP, ())


def test_a_group_id_that_is_named_is_kept_for_the_brokers_access_lists(tmp_path: Path) -> None:
    settings = loaded(tmp_path, f'{WITHOUT_GROUP}[group]\nid = "shop"\n[assign]\npartitions = ["orders"]\n')
    assert settings.group.id == "shop"


def test_without_assign_the_group_assigns(tmp_path: Path) -> None:
    assert not loaded(tmp_path).assigned


def test_the_environment_can_turn_a_configuration_into_a_replay(tmp_path: Path) -> None:
    environ = {
        "KUNICORN_ASSIGN__PARTITIONS": "orders:0-1,orders:5",
        "KUNICORN_ASSIGN__START": '{"orders:0": 3, "orders:1": 4, "orders:5": 0}',
        "KUNICORN_ASSIGN__STOP": "end",
    }
    settings = loaded(tmp_path, WITHOUT_GROUP, environ)
    assert settings.assign.offsets == dict(zip(sorted(of("orders", 0, 1, 5)), (3, 4, 0), strict=True))


@pytest.mark.parametrize(
    ("start", "timestamp"),
    [
        ('"earliest"', -2),
        ('"latest"', -1),
        ('"2026-01-31T00:00:00Z"', 1_769_817_600_000),
        ('"2004-10-28T11:48:29.587Z"', 1_098_964_109_587),
        ('"2026-01-31T01:00:00.250+01:00"', 1_769_817_600_250),
        ("2026-01-31T00:00:00Z", 1_769_817_600_000),
    ],
)
def test_a_start_is_a_name_or_a_time(tmp_path: Path, start: str, timestamp: int) -> None:
    assert assigned(tmp_path, f'partitions = ["orders"]\nstart = {start}').assign.timestamp == timestamp


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ('partitions = ["orders:3-1"]', 'assign.partitions[0] = "orders:3-1": the range ends before it begins'),
        ('partitions = ["orders:x"]', 'assign.partitions[0] = "orders:x": not a topic and its partitions; write'),
        ('partitions = ["^orders"]', 'assign.partitions[0] = "^orders": not a legal name'),
        ('partitions = ["orders:999999999"]', "assign.partitions[0] ="),
        ('partitions = ["o"]\nstart = "2026-01-31T00:00:00"', "a time without a zone is another time"),
        ('partitions = ["o"]\nstart = 2026-01-31', "a time without a zone is another time"),
        ('partitions = ["o"]\nstart = "yesterday"', 'neither "earliest" nor "latest", nor a time'),
        ('partitions = ["o"]\nstart = 17', 'neither "earliest" nor "latest", nor a time'),
        ('partitions = ["o"]\nstart = "1969-01-01T00:00:00Z"', "before 1970"),
        ('partitions = ["o:1"]\nstart = {"o" = 1}', "'o' is not one partition"),
        ('partitions = ["o:1"]\nstart = {"o:1" = -1}', "-1 is not an offset of o:1"),
        ('partitions = ["o:1"]\nstart = {"o:1" = true}', "True is not an offset of o:1"),
        ('partitions = ["o:1"]\nstart = {"o:1" = 1, "o:2" = 1}', "names o:2, which assign.partitions does not"),
        ('partitions = ["o:1-3"]\nstart = {"o:1" = 1}', "has no offset for o:2, o:3"),
        ('partitions = ["o"]\nstart = "latest"\nstop = "end"', "nothing lies between"),
        ('partitions = ["o"]\nstop = "soon"', "not a value it can have"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, lines: str, problem: str) -> None:
    assert problem in refused(tmp_path, lines)


def test_topics_and_partitions_contradict_one_another(tmp_path: Path) -> None:
    (only,) = problems(tmp_path, f'{LEAST}[assign]\npartitions = ["orders"]\n')
    assert only == (
        'group.topics = ["orders"]: given beside assign.partitions; remove one of them: '
        "the group assigns, or [assign] does"
    )


def test_a_start_without_partitions_is_half_an_order(tmp_path: Path) -> None:
    (only,) = problems(tmp_path, f'{LEAST}[assign]\nstart = "latest"\n')
    assert (
        only == "assign.partitions = []: empty; name at least one, such as orders:0-3, or remove the section [assign]"
    )


def test_one_who_is_no_member_cannot_be_a_static_one(tmp_path: Path) -> None:
    text = f'{WITHOUT_GROUP}[group]\ngroup_instance_id = "orders-0"\n[assign]\npartitions = ["orders"]\n'
    (only,) = problems(tmp_path, text)
    assert only.startswith('group.group_instance_id = "orders-0": given beside assign.partitions')


def test_no_topics_and_no_partitions_leave_nothing_to_do(tmp_path: Path) -> None:
    (only,) = problems(tmp_path, LEAST.replace('topics = ["orders"]', "topics = []"))
    assert only == "group.topics = []: empty; name at least one, or name partitions in [assign]"
