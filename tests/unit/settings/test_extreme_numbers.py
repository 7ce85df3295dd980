"""A number that is too large for the messages between our processes is refused with the file, not met later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from kunicorn.clients.config import handler_configs
from kunicorn.errors import ConfigError
from kunicorn.settings import Settings
from kunicorn.settings.checks import MOST_COUNT
from tests.unit.settings.files import LEAST, loaded, problem, problems

HUGE = 99999999999999999999


def numbers_without_most(schema: Any, place: str = "") -> Iterator[str]:
    """Places in a JSON Schema of numbers that have no upper bound."""
    if isinstance(schema, dict):
        if schema.get("type") in {"integer", "number"} and not schema.keys() & {"maximum", "exclusiveMaximum"}:
            yield place
        for name, inner in schema.items():
            yield from numbers_without_most(inner, f"{place}/{name}")
    elif isinstance(schema, list):
        for inner in schema:
            yield from numbers_without_most(inner, place)


def test_every_number_among_the_settings_has_an_upper_bound() -> None:
    """Those of librdkafka's properties are looked at one by one, as they may also be texts."""
    found = [each for each in numbers_without_most(Settings.model_json_schema()) if "/librdkafka/" not in each]
    assert found == []


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ("handler", "max_attempts"),
        ("handler", "batch_max_bytes"),
        ("workers", "max_crashes"),
        ("workers", "max_records"),
        ("workers", "max_age_s"),
        ("workers", "max_rss_mb"),
        ("http", "partition_metrics_max"),
        ("pipeline", "max_bytes_per_second"),
    ],
)
def test_a_count_beyond_all_use_is_refused_with_the_most(tmp_path: Path, section: str, name: str) -> None:
    line = problem(tmp_path, section, f"{name} = {HUGE}")
    assert line.startswith(f"{section}.{name} = {HUGE}: too large; the most is ")


def test_the_largest_count_is_the_same_number_for_a_worker(tmp_path: Path) -> None:
    (handler,) = handler_configs(loaded(tmp_path, LEAST + f"max_attempts = {MOST_COUNT}\n"))
    sent = orjson.loads(orjson.dumps(msgspec.to_builtins(handler)))
    assert sent["max_attempts"] == float(MOST_COUNT) == MOST_COUNT


@pytest.mark.parametrize("value", [str(HUGE), f"-{HUGE}", "nan", "inf", "-inf"])
def test_a_property_of_librdkafka_that_is_no_number_for_a_worker_is_refused(tmp_path: Path, value: str) -> None:
    line = problem(tmp_path, "kafka.librdkafka", f'"fetch.wait.max.ms" = {value}')
    assert "'fetch.wait.max.ms' is no finite number of at most 64 bits" in line


@pytest.mark.parametrize(
    ("value", "place"),
    [(f"{{a = {HUGE}}}", "a"), ("{a = {b = [1, nan]}}", r"a.b[1]"), ("{a = [{b = -inf}]}", "a[0].b")],
)
def test_an_option_that_would_not_arrive_as_it_is_is_refused_without_its_value(
    tmp_path: Path, value: str, place: str
) -> None:
    line = problem(tmp_path, "handler", f"options = {value}")
    assert line == (
        f"handler.options = (not shown): {place} is no finite number of at most 64 bits; write it as a text, and let "
        f"setup(options) read that"
    )


def test_numbers_that_arrive_are_options(tmp_path: Path) -> None:
    options = loaded(
        tmp_path, LEAST + "options = {a = 9223372036854775807, b = -1.5, c = [true, 1e300]}\n"
    ).handler.options
    assert options == {"a": 2**63 - 1, "b": -1.5, "c": [True, 1e300]}


def test_a_start_offset_that_no_log_has_is_refused(tmp_path: Path) -> None:
    assign = f'[assign]\npartitions = ["orders:0"]\nstart = {{"orders:0" = {HUGE}}}\n'
    text = LEAST.replace('topics = ["orders"]\n', "") + assign
    with pytest.raises(ConfigError, match="is not an offset of orders:0; write a whole number from 0 on"):
        loaded(tmp_path, text)


@pytest.mark.parametrize("rate", ["1e-300", "5e-324", "0"])
def test_a_rate_of_which_no_clock_tells_the_next_record_is_refused_with_the_least(tmp_path: Path, rate: str) -> None:
    (only,) = problems(tmp_path, LEAST + f"rate_limit = {{per_second = {rate}}}\n")
    assert only.startswith("handler.rate_limit.per_second = ")
    assert only.endswith("too small; the least is 1e-06")
