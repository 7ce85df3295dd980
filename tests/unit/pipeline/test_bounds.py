"""Options as Spark's own Kafka source has them."""

from __future__ import annotations

import pytest

from kunicorn.errors import ConfigError
from kunicorn.pipeline.plan import Bounds, ByOffset, ByTime, Everywhere, as_json, bounds_of, from_json, pairs_in
from kunicorn.positions import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def test_a_batch_reads_everything_and_a_stream_what_is_new_unless_told_otherwise() -> None:
    assert bounds_of({}, batch=True) == Bounds(Everywhere(-2), Everywhere(-1))
    assert bounds_of({}, batch=False) == Bounds(Everywhere(-1), Everywhere(-1))


def test_a_time_goes_before_times_and_those_before_offsets() -> None:
    options = {"startingOffsets": '{"a": {"0": 7, "1": -2}}', "endingTimestamp": "9"}
    assert bounds_of(options, batch=True).start == ByOffset({A0: 7, A1: -2})
    options["startingOffsetsByTimestamp"] = '{"a": {"0": 5}}'
    assert bounds_of(options, batch=True).start == ByTime(None, {A0: 5})
    options["startingTimestamp"] = "3"
    assert bounds_of(options, batch=True) == Bounds(ByTime(3, {}), ByTime(9, {}))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"startingOffsets": "latest"}, "has nothing to read"),
        ({"endingOffsets": "earliest"}, "nothing lies before it"),
        ({"startingOffsets": '{"a": {"0": -1}}'}, "a-0 = -1 leaves nothing to read"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, "a-0 = -2 leaves nothing to read"),
        ({"startingOffsets": "{"}, "is not JSON"),
        ({"startingOffsets": "erliest"}, "write earliest, latest, or offsets such as"),
        ({"startingOffsets": "{}"}, "no object of topics"),
        ({"startingOffsets": '{"a": {}}'}, "topic 'a' has no object of partitions"),
        ({"startingOffsets": '{"a": {"x": 1}}'}, "'x' is no partition of 'a'"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "-3 is no offset of a-0"),
        ({"startingOffsets": '{"a": {"0": true}}'}, "True is no offset of a-0"),
        ({"startingOffsets": '{"a": {"0": 3, "0": 5}}'}, "has '0' twice in one object"),
        ({"startingOffsets": '{"a": {"0": 3}, "a": {"1": 5}}'}, "has 'a' twice in one object"),
        ({"startingOffsets": '{"a": {"0": 3, "00": 5}}'}, "'00' is no partition of 'a'"),
        ({"startingOffsets": '{"a": {"%s": 3}}' % ("9" * 5000)}, "is no partition of 'a'"),
        ({"startingOffsets": f'{{"a": {{"0": {2**63}}}}}'}, "is no offset of a-0"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"startingTimestamp": str(2**63)}, "milliseconds since 1970"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "neither error nor latest"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_option(options: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        bounds_of(options, batch=True)
    assert next(iter(options)) in str(refused.value)


def test_ranges_come_as_pairs() -> None:
    assert pairs_in("--offsets", '{"a": {"0": [1, 5], "1": [-2, -1]}}') == ({A0: 1, A1: -2}, {A0: 5, A1: -1})
    for text in ('{"a": {"0": 5}}', '{"a": 5}', '{"a": {}}', "[]", "{", '{"a": {"0": [1, 5], "0": [8, 9]}}'):
        with pytest.raises(ConfigError, match="--offsets"):
            pairs_in("--offsets", text)


def test_checkpoints_read_what_they_wrote() -> None:
    assert from_json(as_json({A1: 7, A0: 3})) == {A0: 3, A1: 7}
