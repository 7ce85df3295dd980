"""Times as people say them on a command line."""

from __future__ import annotations

import pytest

from kunicorn.errors import ConfigError
from kunicorn.text import moment, span, utc

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2h", NOW - 7_200_000),
        ("90s", NOW - 90_000),
        ("99999999999999999999d", 0),
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T23:13:20+01:00", NOW),
        ("2004-10-28T11:48:29.587Z", 1_098_964_109_587),
    ],
)
def test_a_moment_is_a_time_with_its_zone_or_an_age(text: str, ms: int) -> None:
    assert moment("--since", text, NOW) == ms


@pytest.mark.parametrize(
    "text", ["yesterday", "2023-11-14T22:13:20", "2 h", "", pytest.param("9" * 5000 + "d", id="5,000 digits")]
)
def test_a_time_without_a_zone_and_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--until .* neither a time with its zone"):
        moment("--until", text, NOW)


@pytest.mark.parametrize("text", ["1969-12-31T23:59:59.999Z", "0001-01-01T00:00:00+05:00"])
def test_a_moment_before_kafkas_first_timestamp_is_refused(text: str) -> None:
    """-1 and -2 milliseconds would be the end of the log, and its beginning."""
    with pytest.raises(ConfigError, match=r"--until .* is before 1970, where Kafka's timestamps begin"):
        moment("--until", text, NOW)


def test_the_time_of_a_record_is_shown_as_people_write_it() -> None:
    assert (utc(NOW), utc(NOW, "milliseconds")) == ("2023-11-14T22:13:20Z", "2023-11-14T22:13:20.000Z")
    assert utc(None) == "without a timestamp"


@pytest.mark.parametrize("ms", [1_700_000_000_000_000, -(10**15), 2**62, 2**63 - 1])
def test_a_timestamp_that_no_calendar_has_is_shown_as_its_number(ms: int) -> None:
    """Such as that of a producer that writes microseconds."""
    assert utc(ms) == f"{ms} ms since 1970"


def test_a_length_of_time_is_a_number_and_a_unit() -> None:
    assert [span("--for", text) for text in ("90s", "10m", "2h", "1d")] == [90, 600, 7200, 86_400]


@pytest.mark.parametrize(
    "text",
    [
        "0s",
        "10",
        "ten minutes",
        "2023-11-14T22:13:20Z",
        "-5m",
        pytest.param("9" * 400 + "s", id="400 digits"),
        pytest.param("9" * 5000 + "s", id="5,000 digits"),
    ],
)
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--for .* no length of time"):
        span("--for", text)
