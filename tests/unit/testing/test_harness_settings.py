"""Settings under the testing kit: what a service would be refused is refused, and what a test cannot have is not asked
for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from kunicorn import DeadLetter, Record, TopicPartition
from kunicorn.errors import ConfigError
from kunicorn.testing import HandlerTest, record
from kunicorn.worker.fetching import own_fetcher

P0 = TopicPartition("test", 0)
CONFIG = """
[kafka]
bootstrap_servers = ["nowhere:9092"]

[group]
id = "shop"
topics = {topics}

[handler]
entrypoint = "{module}:handle"
{handler}
{more}
"""


def handle(given: Record) -> None: ...


def refuse(given: Record) -> None:
    raise ValueError("refused")


class KeepsOffsets:
    """A handler with offsets of its own."""

    def load_offsets(self, partitions: Sequence[Any]) -> dict[Any, int]:
        return {}

    def store_offsets(self, offsets: Any) -> None: ...

    def handle(self, given: Record) -> None: ...


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(more: str = "", handler: str = "", topics: str = '["orders"]') -> Path:
        path = tmp_path / "config.toml"
        path.write_text(CONFIG.format(module=__name__, more=more, handler=handler, topics=topics))
        return path

    return write


@pytest.mark.parametrize(
    "section",
    [
        '[otlp]\nenabled = true\nheaders_file = "/run/secrets/none"',
        '[workers]\nallocator = "/usr/lib/none.so"',
        '[schema_registry]\nurl = "https://registry.example:8081"\nusername = "u"\npassword_file = "/run/secrets/none"',
    ],
    ids=["otlp", "allocator", "schema registry"],
)
def test_a_test_needs_none_of_the_services_secrets_and_files(section: str, written: Callable[..., Path]) -> None:
    assert HandlerTest(config=written(section)).run(record("a")).outcomes == ["done"]


def test_a_registry_in_memory_needs_nothing_of_the_services_own(written: Callable[..., Path]) -> None:
    pytest.importorskip("fastavro")
    section = (
        '[schema_registry]\nurl = "https://registry.example:8081"\nusername = "u"\npassword_file = "/run/secrets/none"'
    )
    config = written(section, handler='value = "avro"')
    run = HandlerTest(config=config, schemas={"orders-value": '"int"'}).run(record(b"\0\0\0\0\1\6"))
    assert run.outcomes == ["done"]


@pytest.mark.parametrize("schema", ["shop.Order", object()])
def test_of_the_schemas_in_memory_the_one_that_is_none_is_named(schema: object) -> None:
    test = HandlerTest(len, value="avro", schemas={"orders-key": '"int"', "orders-value": schema})
    with pytest.raises(
        ValueError, match=r"schemas: 'orders-value' has no schema: .*; give Avro or JSON Schema as a text"
    ):
        test.run(record(b"\0\0\0\0\1\6"))


def test_what_a_test_says_itself_of_a_section_counts(written: Callable[..., Path]) -> None:
    own = {"schema_registry": {"url": "https://registry.example:8081", "username": "u", "password_file": "/none"}}
    with pytest.raises(ConfigError, match="password_file"):
        HandlerTest(config=written(), settings=own).run(record("a"))


@pytest.mark.parametrize(
    ("handler", "settings", "refusal"),
    [
        (handle, {"ordering": "key"}, "one call runs at a time"),
        (handle, {"ordering": "none"}, "one call runs at a time"),
        (KeepsOffsets, {"ordering": "key", "concurrency": 4}, "keeps its offsets itself"),
        (KeepsOffsets, {"settings": {"producing": {"delivery": "transactions"}}}, "committed in two places"),
    ],
)
def test_settings_that_do_not_go_with_the_handler_are_refused(
    handler: Any, settings: dict[str, Any], refusal: str
) -> None:
    with pytest.raises(ConfigError, match=refusal):
        HandlerTest(handler, **settings).run(record("a"))


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({"producing": {"delivery": "at_least_once", "librdkafka": {"no.such": 1}}}, 'property: "no.such"'),
        ({"producing": {"delivery": "transactions", "librdkafka": {"batch.size": "lots"}}}, "producing.librdkafka"),
        ({"kafka": {"librdkafka": {"fetch.min.bytes": "lots"}}}, "kafka.librdkafka"),
    ],
)
def test_properties_that_librdkafka_refuses_are_refused(settings: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal):
        HandlerTest(handle, settings=settings).run(record("a"))


def test_the_services_isolation_level_counts_where_its_retry_topics_need_another(written: Callable[..., Path]) -> None:
    transactions = '[producing]\ndelivery = "transactions"'
    config = written(transactions, handler="retry_topic_delays_ms = [5000]")
    with pytest.raises(ConfigError, match=r"kafka\.isolation_level"):
        HandlerTest(config=config).run(record("a"))
    config.write_text(config.read_text().replace("[kafka]", '[kafka]\nisolation_level = "read_committed"'))
    assert HandlerTest(config=config).run(record("a")).outcomes == ["done"]


def test_setup_is_told_the_clients_name_that_the_service_has(written: Callable[..., Path]) -> None:
    names: list[str] = []

    class Named:
        def setup(self, worker: Any, options: Any) -> None:
            names.append(worker.client_id)

        def handle(self, given: Record) -> None: ...

    config = written()
    config.write_text(config.read_text().replace("[kafka]", '[kafka]\nclient_id = "orders"'))
    HandlerTest(Named, config=config).run(record("a"))
    assert names == ["orders-worker-0"]


def test_settings_that_go_with_the_handler_are_taken_though_records_come_one_by_one() -> None:
    for settings in ({"ordering": "key", "concurrency": 4}, {"concurrency": 4}):
        assert HandlerTest(handle, **settings).run(record("a", key="k")).outcomes == ["done"]


def test_a_service_with_our_own_fetcher_is_tested_without_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    def asks_brokers(*given: object) -> NoReturn:
        raise AssertionError("the test fetches")

    monkeypatch.setattr(own_fetcher, "own_fetcher", asks_brokers)
    run = HandlerTest(handle, settings={"kafka": {"fetcher": "own"}}).run(record("1"), record("2"))
    assert run.outcomes == ["done", "done"]


def test_without_a_dead_letter_topic_a_dead_letter_halts_its_partition() -> None:
    def give_up(given: Record) -> None:
        raise DeadLetter("a negative total")

    run = HandlerTest(give_up).run(record("a"))
    assert (run.outcomes, run.committed) == (["halted"], {P0: 0})
    assert "no dead-letter topic is set" in run.halted[P0]
    run = HandlerTest(give_up, settings={"dead_letters": {"topic": "bad"}}).run(record("a"))
    assert (run.outcomes, run.dead_letters[0].topic) == (["dead_letter"], "bad")


def test_a_record_of_a_topic_that_the_service_does_not_consume_is_refused(written: Callable[..., Path]) -> None:
    test = HandlerTest(config=written(topics='["orders", "^refunds-.*"]'))
    assert test.run(record("a"), record("b", topic="refunds-eu")).outcomes == ["done", "done"]
    with pytest.raises(ValueError, match=r"ordres-0@0 would never come: the settings consume orders, \^refunds"):
        test.run(record("a", topic="ordres"))


def test_a_record_of_kafkas_own_topics_is_refused_as_no_pattern_matches_them(written: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match="__consumer_offsets-0@0 would never come"):
        HandlerTest(config=written(topics='["^.*"]')).run(record("a", topic="__consumer_offsets"))
    named = HandlerTest(config=written(topics='["__consumer_offsets"]'))
    assert named.run(record("a")).outcomes == ["done"]


def test_a_record_of_a_topic_that_the_test_itself_does_not_name_is_refused() -> None:
    test = HandlerTest(handle, settings={"group": {"id": "shop", "topics": ["orders"]}})
    with pytest.raises(ValueError, match="the settings consume orders"):
        test.run(record("a", topic="ordres"))


def test_a_record_of_a_topic_without_a_handler_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[kafka]\nbootstrap_servers = ["nowhere:9092"]\n[group]\nid = "shop"\n'
        f'[[handlers]]\ntopics = ["orders"]\nentrypoint = "{__name__}:handle"\n'
        f'[[handlers]]\ntopics = ["refunds"]\nentrypoint = "{__name__}:handle"\n'
    )
    test = HandlerTest(config=config)
    assert test.run(record("a", topic="refunds")).outcomes == ["done"]
    with pytest.raises(ValueError, match="the settings consume orders, refunds"):
        test.run(record("a", topic="ordres"))


def test_several_handlers_need_no_file() -> None:
    orders = {"topics": ["orders"], "entrypoint": f"{__name__}:handle"}
    refunds = {"topics": ["^refunds-.*"], "entrypoint": f"{__name__}:refuse", "on_failure": "skip"}
    test = HandlerTest(settings={"handlers": [orders, refunds]})
    assert test.run(record("a"), record("b", topic="refunds-eu")).outcomes == ["done", "skipped"]
    with pytest.raises(ValueError, match="would never come"):
        test.run(record("a", topic="returns"))


def test_partitions_that_are_assigned_need_no_file_and_no_others_come() -> None:
    test = HandlerTest(handle, settings={"assign": {"partitions": ["orders:3-4", "refunds"]}})
    assert test.run(record("a", partition=3), record("b", topic="refunds", partition=9)).outcomes == ["done", "done"]
    with pytest.raises(ValueError, match=r"orders-0@0 would never come: assign.partitions is orders:3-4, refunds"):
        test.run(record("a"))
    with pytest.raises(ValueError, match="returns-0@0 would never come"):
        test.run(record("a", topic="returns"))


def test_records_of_retry_topics_and_where_nobody_names_topics_of_any_are_taken(written: Callable[..., Path]) -> None:
    config = written(handler="retry_topic_delays_ms = [5000]")
    assert HandlerTest(config=config).run(record("a", topic="shop.retry.5s")).outcomes == ["done"]
    assert HandlerTest(handle).run(record("a", topic="whatever")).outcomes == ["done"]
