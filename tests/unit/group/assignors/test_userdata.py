"""The bytes sticky members add to their Subscription; layouts as in the Java client's StickyAssignor."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.group.assignors import ASSIGNORS
from kunicorn.group.assignors.sticky import pack_assignment, pack_generation, unpack_assignment, unpack_generation
from kunicorn.group.protocol import NO_GENERATION
from kunicorn.positions import TopicPartition
from tests.contract.assignors.groups import of, steady

partitions = st.sets(st.builds(TopicPartition, st.text(min_size=1, max_size=9), st.integers(0, 2**31 - 1)))
generations = st.integers(-1, 2**31 - 1)


def test_an_assignment_is_laid_out_as_the_java_client_does() -> None:
    assert pack_assignment(of("ab", 1, 0), 7).hex() == "000000010002616200000002000000000000000100000007"


@steady
@given(partitions=partitions, generation=generations)
def test_what_is_packed_is_read_back(partitions: set[TopicPartition], generation: int) -> None:
    assert unpack_assignment(pack_assignment(partitions, generation)) == (tuple(sorted(partitions)), generation)
    assert unpack_generation(pack_generation(generation)) == generation


@steady
@given(partitions=partitions)
def test_version_0_has_no_generation(partitions: set[TopicPartition]) -> None:
    version_0 = pack_assignment(partitions, 7)[:-4]
    assert unpack_assignment(version_0) == (tuple(sorted(partitions)), None)


@steady
@given(partitions=partitions, generation=generations, data=st.data())
def test_data_cut_off_claims_nothing(partitions: set[TopicPartition], generation: int, data: st.DataObject) -> None:
    whole = pack_assignment(partitions, generation)
    cut = whole[: data.draw(st.integers(0, len(whole) - 8))] if partitions else b""
    assert unpack_assignment(cut) == ((), None)


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"\x00",
        struct.pack(">ih", 1, -1),
        struct.pack(">ihih", 2**31 - 1, 0, 0, -6),
        struct.pack(">ih2si", 1, 2, b"ab", 2**31 - 1),
        struct.pack(">ih2si", 1, 2, b"ab", -1),
        struct.pack(">ih2sii", 1, 2, b"\xff\xff", 1, 0),
        struct.pack(">i", 2**31 - 1),
    ],
    ids=["none", "empty", "short", "negative name", "endless", "huge array", "null array", "not UTF-8", "huge topics"],
)
def test_nonsense_claims_nothing(data: bytes | None) -> None:
    assert unpack_assignment(data) == ((), None)


@pytest.mark.parametrize("data", [None, b"", b"\x00\x00\x01"])
def test_a_generation_that_is_not_there_is_none(data: bytes | None) -> None:
    assert unpack_generation(data) is None


def test_only_the_sticky_assignors_send_user_data() -> None:
    told = {name: assignor.user_data(7, of("t", 1)) for name, assignor in ASSIGNORS.items()}
    assert told == {
        "range": None,
        "roundrobin": None,
        "sticky": pack_assignment(of("t", 1), 7),
        "cooperative-sticky": pack_generation(7),
    }


def test_a_member_without_a_past_sends_no_assignment() -> None:
    assert ASSIGNORS["sticky"].user_data(NO_GENERATION) is None
