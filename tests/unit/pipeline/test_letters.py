"""Dead letters made of outcome rows, and sent by the task that makes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from kunicorn.clients.access import Access
from kunicorn.errors import ConfigError
from kunicorn.handler.retry import End
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks import range_outcomes
from kunicorn.pipeline.tasks.executor_process import SettingsFile, settings_file
from kunicorn.pipeline.tasks.letters import Letters, LettersRefused, letter_in, letters_of, topic_in
from kunicorn.pipeline.tasks.outcomes import Row
from kunicorn.pipeline.tasks.range_outcomes import RangeOutcomes
from kunicorn.positions import OffsetRange
from kunicorn.settings import load
from kunicorn.settings.load import load_tables
from tests.fakes.complete_settings import tables_of
from tests.unit.pipeline.secured_config import CONFIG, SECRET


def row_of(offset: int, timestamp: int | None = 1, end: End = End.DEAD_LETTER) -> Row:
    return {
        "topic": "orders",
        "partition": 0,
        "offset": offset,
        "until": offset + 1,
        "records": 1,
        "status": end.value,
        "error_type": "ValueError",
        "error_message": "no",
        "error_stack": "",
        "attempts": 3,
        "time": 1_763_900_000_001,
        "timestamp": timestamp,
        "key": None,
        "value": b"x",
        "headers": [{"key": "trace", "value": b"1"}],
    }


@pytest.mark.parametrize("timestamp", [1_763_900_000_000, 1_763_900_000_000_000, 2**53, None])
def test_a_letter_keeps_its_records_time_even_if_no_calendar_has_it(timestamp: int | None) -> None:
    letter = letter_in(row_of(7, timestamp), "shop")
    assert (letter.value, letter.timestamp) == (b"x", timestamp)


@pytest.mark.parametrize(
    ("reason", "by_rule", "topic"),
    [
        ("attempts", None, "refunds.dead-letters"),
        ("attempts", "fraud", "fraud"),
        ("poison", None, "poison"),
        ("poison", "fraud", "fraud"),
    ],
)
def test_the_topic_is_that_of_the_rule_of_the_reason_or_of_the_handler(
    reason: str, by_rule: str | None, topic: str
) -> None:
    tables = tables_of(
        group={"id": "shop"},
        dead_letters={"topics": {"poison": "poison"}},
        handlers=[
            {"entrypoint": "shop:handle", "topics": ["orders"], "on_failure": "dead_letter"},
            {"entrypoint": "shop:refund", "topics": ["refunds"], "dead_letter_topic": "refunds.dead-letters"},
        ],
    )
    settings = load_tables(Path("config.toml"), tables)
    given = {"topic": "refunds", "reason": reason, "letter_topic": by_rule}
    assert topic_in(given, settings) == topic
    of_orders = topic if by_rule or reason == "poison" else "shop.dead-letters"
    assert topic_in({**given, "topic": "orders"}, settings) == of_orders


class Post:
    """A producer: answers when it is flushed the second time."""

    def __init__(self, error: KafkaError | None = None) -> None:
        self.sent: list[str] = []
        self._error = error
        self._open: list[Callable[[KafkaError | None], None]] = []
        self._flushed = 0

    def send(self, topic: str, key: Any, value: Any, headers: Any, answered: Any, *, timestamp: Any) -> None:
        self.sent.append(topic)
        self._open.append(answered)

    def flush(self, within: float) -> int:
        self._flushed += 1
        if self._flushed < 2:
            return len(self._open)
        for answered in self._open:
            answered(self._error)
        return 0


def letters(post: Any) -> Letters:
    return Letters(post, lambda row: "orders.dlq", lambda row: letter_in(row, "shop"))


def test_a_ranges_letters_are_acknowledged_before_it_ends() -> None:
    post = Post()
    sent = letters(post)
    for offset in (2, 3):
        sent.add(row_of(offset))
    assert (post.sent, post._flushed) == (["orders.dlq", "orders.dlq"], 0)
    sent.flush()
    assert post._flushed == 2


def test_a_record_that_asks_for_a_letter_where_no_topic_is_set_names_the_setting() -> None:
    without = Letters(Post(), lambda row: None, lambda row: letter_in(row, "shop"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"set dead_letters\.topic"):
        without.add(row_of(2))


def test_a_letter_that_is_refused_ends_its_range() -> None:
    refused: Any = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    sent = letters(Post(refused))
    sent.add(row_of(2))
    with pytest.raises(LettersRefused, match=r"'orders.dlq' does not take a letter.*The range does not count"):
        sent.flush()


class Narrow:
    """A producer of a topic that takes so many bytes together: what is sent between two flushes is one batch."""

    def __init__(self, most: int) -> None:
        self.taken: list[bytes] = []
        self.batches = 0
        self._most, self._batch = most, list[tuple[bytes, Callable[[KafkaError | None], None]]]()

    def send(self, topic: str, key: Any, value: bytes, headers: Any, answered: Any, *, timestamp: Any) -> None:
        self._batch.append((value, answered))

    def flush(self, within: float) -> int:
        batch, self._batch = self._batch, []
        self.batches += bool(batch)
        fits = sum(len(value) for value, _ in batch) <= self._most
        self.taken += [value for value, _ in batch if fits]
        for _, answered in batch:
            answered(None if fits else KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        return 0


def test_letters_that_are_too_large_only_together_are_sent_in_smaller_batches() -> None:
    post = Narrow(most=100)
    sent = letters(post)
    values = [bytes([number]) * (1 + number % 40) for number in range(200)]
    for offset, value in enumerate(values):
        sent.add(row_of(offset) | {"value": value})
    sent.flush()
    assert sorted(post.taken) == sorted(values), "each once"
    assert post.batches < len(values)


def test_a_letter_that_is_too_large_by_itself_ends_its_range() -> None:
    sent = letters(Narrow(most=100))
    for offset, size in enumerate((1, 101, 1)):
        sent.add(row_of(offset) | {"value": bytes(size)})
    with pytest.raises(LettersRefused, match=r"'orders.dlq' does not take a letter"):
        sent.flush()


class Client:
    """A producer: notes what it is to log in with."""

    def __init__(self) -> None:
        self.logins: list[tuple[str, str]] = []

    def set_sasl_credentials(self, username: str, password: str) -> None:
        self.logins.append((username, password))


def test_the_letters_of_each_range_go_with_the_password_of_now_over_one_producer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Client] = []

    def client(access: Access) -> Client:
        made.append(Client())
        return made[-1]

    monkeypatch.setattr(Access, "letters", client)
    (password := tmp_path / "password").write_text("former")
    (path := tmp_path / "config.toml").write_text(
        CONFIG.replace(f'sasl_password = "{SECRET}"', f'sasl_password_file = "{password}"')
    )
    file = settings_file(path, load(path, {}))
    assert letters_of(file) is not None
    password.write_text("latter")
    assert letters_of(file) is not None
    assert [each.logins for each in made] == [[("orders", "former"), ("orders", "latter")]]


def ended(directory: Path, monkeypatch: pytest.MonkeyPatch, post: Post) -> Any:
    """What a range comes to that has a letter between two others that are done."""
    monkeypatch.setattr(range_outcomes, "letters_of", lambda file: letters(post))
    outcomes, whole = Directory(str(directory)), OffsetRange("orders", 0, 1, 4)
    with RangeOutcomes(SettingsFile("", ""), outcomes, whole, "driver", again=False) as found:
        for offset, end in ((1, End.DONE), (2, End.DEAD_LETTER), (3, End.DONE)):
            found.add(row_of(offset, end=end))
        return found.end()


def test_a_range_sends_each_letter_once_and_ends_once_all_are_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = Post()
    summary = ended(tmp_path, monkeypatch, post)
    assert (post.sent, post._flushed) == (["orders.dlq"], 2)
    assert (summary.records, summary.dead_letters, summary.until) == (2, 1, 4)


def test_a_range_whose_letter_is_refused_leaves_no_file_and_comes_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: Any = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(LettersRefused):
        ended(tmp_path, monkeypatch, Post(refused))
    assert [*tmp_path.rglob("*.parquet")] == []
