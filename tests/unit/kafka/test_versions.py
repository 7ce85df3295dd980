"""Which version a broker gets, and how it says what it offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kunicorn.kafka.connection import RetryWith, read_api_versions
from kunicorn.kafka.errors import ProtocolError, UnsupportedByBroker
from kunicorn.kafka.versions import OURS, RESPONSES, Api, Negotiated, VersionRange
from tests.fakes.messages import blank_response, nested, response_frame


def answer(version: int, error: int = 0, **offered: tuple[int, int]) -> bytes:
    """ApiVersions as a broker sends it."""
    row = nested(RESPONSES[Api.API_VERSIONS, version], "api_keys")
    rows = tuple(row(api_key=int(Api[api]), min_version=low, max_version=high) for api, (low, high) in offered.items())
    return response_frame(1, blank_response(Api.API_VERSIONS, version, error_code=error, api_keys=rows))


def offers(low: int, high: int, api: Api = Api.JOIN_GROUP) -> Negotiated:
    return Negotiated({api: VersionRange(low, high)}, "broker:9092")


def test_the_highest_version_of_both_is_taken() -> None:
    assert offers(0, 7).version(Api.JOIN_GROUP) == 7
    assert offers(2, 99).version(Api.JOIN_GROUP) == OURS[Api.JOIN_GROUP].high
    assert offers(0, 5).version(Api.JOIN_GROUP) == 5


@pytest.mark.parametrize(("low", "high"), [(0, 4), (10, 12)])
def test_ranges_that_do_not_meet_are_named(low: int, high: int) -> None:
    with pytest.raises(UnsupportedByBroker, match=f"broker:9092 offers JoinGroup in versions {low}-{high}, .* 5-9"):
        offers(low, high).version(Api.JOIN_GROUP)


def test_an_api_that_the_broker_lacks_fails_only_when_it_is_used() -> None:
    negotiated = offers(0, 9)
    assert negotiated.version(Api.JOIN_GROUP) == 9
    with pytest.raises(UnsupportedByBroker, match="does not offer OffsetForLeaderEpoch"):
        negotiated.version(Api.OFFSET_FOR_LEADER_EPOCH)


def test_a_version_can_be_too_high_for_what_is_to_be_said() -> None:
    assert offers(2, 10, Api.OFFSET_COMMIT).version(Api.OFFSET_COMMIT) == 10
    assert offers(2, 10, Api.OFFSET_COMMIT).version(Api.OFFSET_COMMIT, at_most=9) == 9


def test_a_version_below_ours_is_spoken_where_it_is_demanded() -> None:
    assert offers(2, 10, Api.OFFSET_COMMIT).version(Api.OFFSET_COMMIT, at_most=4) == 4
    with pytest.raises(UnsupportedByBroker, match="OffsetCommit in versions 5-10"):
        offers(5, 10, Api.OFFSET_COMMIT).version(Api.OFFSET_COMMIT, at_most=4)
    with pytest.raises(UnsupportedByBroker, match="OffsetCommit in versions 2-6"):
        offers(2, 6, Api.OFFSET_COMMIT).version(Api.OFFSET_COMMIT)


def test_importing_the_client_makes_no_message_class() -> None:
    code = "import sys, kunicorn.supervisor.service; print(sum(name.startswith('kio.schema.') for name in sys.modules))"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    # The consumer protocol's own few, which are not spoken with a broker.
    assert int(made.stdout) < 30


def test_offsets_are_fetched_by_topic_name() -> None:
    assert offers(1, 10, Api.OFFSET_FETCH).version(Api.OFFSET_FETCH) == 9


@pytest.mark.parametrize("version", range(5))
def test_the_offer_is_read_in_every_version(version: int) -> None:
    offered = read_api_versions(version, answer(version, JOIN_GROUP=(2, 9), METADATA=(0, 13)))
    assert offered == {Api.JOIN_GROUP: (2, 9), Api.METADATA: (0, 13)}


def test_a_refusal_says_which_version_to_try_next() -> None:
    assert read_api_versions(4, answer(0, error=35, API_VERSIONS=(0, 3))) == RetryWith(3)


def test_a_refusal_that_cannot_be_read_leads_to_version_0() -> None:
    assert read_api_versions(4, b"\0\0\0\x01\x00\x23\xff") == RetryWith(0)
    assert read_api_versions(4, answer(0, error=35)) == RetryWith(0)


@pytest.mark.scenario("ApiVersionsDowngradeLoopTerminates")
def test_every_retry_is_lower_than_the_try_before() -> None:
    """A broker that refuses the very version it recommends would otherwise be asked for ever."""
    refusal = answer(0, error=35, API_VERSIONS=(0, 4))
    version, tried = 4, [4]
    while isinstance(outcome := read_api_versions(version, refusal), RetryWith) and outcome.version > 0:
        version = outcome.version
        tried.append(version)
    assert tried == [4, 3, 2, 1]
    with pytest.raises(ProtocolError, match="ApiVersions v0 was refused: UNSUPPORTED_VERSION"):
        read_api_versions(0, refusal)


def test_another_error_is_told_by_name() -> None:
    with pytest.raises(ProtocolError, match=r"ApiVersions v3 was refused: INVALID_REQUEST \(42\)"):
        read_api_versions(3, answer(3, error=42))


def test_an_answer_without_even_an_error_is_no_answer() -> None:
    with pytest.raises(ProtocolError, match="only 5 bytes"):
        read_api_versions(4, b"\0\0\0\x01\x00")


def test_titles_are_spelt_as_kafka_spells_them() -> None:
    assert [Api.JOIN_GROUP.title, Api.OFFSET_FOR_LEADER_EPOCH.title] == ["JoinGroup", "OffsetForLeaderEpoch"]
