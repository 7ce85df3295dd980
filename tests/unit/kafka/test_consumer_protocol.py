"""The members' own bytes: ours are read by everybody, and nobody's bytes stop the group."""

from __future__ import annotations

import logging
import struct
from random import Random

import pytest
from kio.schema.consumer_protocol_subscription import v0, v1, v2
from kio.schema.consumer_protocol_subscription.v1.data import TopicPartition as TopicPartitionV1
from kio.schema.consumer_protocol_subscription.v2.data import TopicPartition as TopicPartitionV2

from kunicorn.group.protocol import Subscription
from kunicorn.kafka.codec import encode
from kunicorn.kafka.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kunicorn.kafka.errors import ProtocolError
from kunicorn.positions import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def versioned(version: int, body: bytes) -> bytes:
    return struct.pack(">h", version) + body


def test_a_subscription_is_read_back_as_it_was_written() -> None:
    subscription = Subscription(("a", "b"), (A0, A1, B0), 7, "rack", b"data")
    assert decode_subscription("range", "m", encode_subscription("range", subscription)) == subscription


def test_a_subscriptions_bytes_are_those_that_kafka_reads() -> None:
    """Version 3, field by field (`ConsumerProtocolSubscription.json`)."""
    assert encode_subscription("range", Subscription(("a",), (A1,), 5, "r")) == bytes.fromhex(
        "000300000001000161ffffffff00000001000161000000010000000100000005000172"
    )


def test_the_same_wishes_have_the_same_bytes_in_any_order() -> None:
    """The broker starts a rebalance when a member's bytes change."""
    one = encode_subscription("range", Subscription(("b", "a"), (B0, A1, A0)))
    other = encode_subscription("range", Subscription(("a", "b"), (A0, B0, A1)))
    assert one == other


def test_cooperative_sticky_says_its_generation_to_old_members_too() -> None:
    data = encode_subscription("cooperative-sticky", Subscription(("a",), (), 9))
    assert decode_subscription("cooperative-sticky", "m", data).user_data == struct.pack(">i", 9)


def test_user_data_of_the_assignor_is_left_alone() -> None:
    data = encode_subscription("cooperative-sticky", Subscription(("a",), (), 9, user_data=b"own"))
    assert decode_subscription("range", "m", data).user_data == b"own"


def test_a_generation_in_the_user_data_of_an_old_member_is_found() -> None:
    body = encode(v1.ConsumerProtocolSubscription(topics=("a",), user_data=struct.pack(">i", 4), owned_partitions=()))
    assert decode_subscription("cooperative-sticky", "m", versioned(1, body)).generation == 4
    assert decode_subscription("range", "m", versioned(1, body)).generation == -1


def test_any_negative_generation_means_none() -> None:
    assert (
        decode_subscription("range", "m", encode_subscription("range", Subscription(("a",), (), -7))).generation == -1
    )


@pytest.mark.scenario("ConsumerProtocolTest")
def test_versions_0_to_2_are_read_with_what_they_have() -> None:
    first = encode(v0.ConsumerProtocolSubscription(topics=("a",), user_data=None))
    assert decode_subscription(None, "m", versioned(0, first)) == Subscription(("a",))
    owned1 = (TopicPartitionV1(topic="a", partitions=(1, 0)),)  # type: ignore[arg-type]
    second = encode(v1.ConsumerProtocolSubscription(topics=("a",), owned_partitions=owned1))
    assert decode_subscription(None, "m", versioned(1, second)) == Subscription(("a",), (A1, A0))
    owned2 = (TopicPartitionV2(topic="a", partitions=(0,)),)  # type: ignore[arg-type]
    third = encode(v2.ConsumerProtocolSubscription(topics=("a",), owned_partitions=owned2, generation_id=3))  # type: ignore[arg-type]
    assert decode_subscription(None, "m", versioned(2, third)) == Subscription(("a",), (A0,), 3)


@pytest.mark.scenario("ConsumerProtocolTest")
def test_a_version_from_the_future_is_read_as_far_as_we_know_it() -> None:
    data = encode_subscription("range", Subscription(("a",), (A0,), 5, "r"))
    future = versioned(17, data[2:] + b"fields to come")
    assert decode_subscription("range", "m", future) == Subscription(("a",), (A0,), 5, "r")


@pytest.mark.parametrize("junk", [b"", b"\x00", b"\xff\xff", b"junk", b"\x00\x03\x7f\xff\xff\xff"])
def test_an_unreadable_subscription_wants_nothing_and_is_told(junk: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert decode_subscription("range", "member-7", junk) == Subscription(())
    assert "member member-7 of the group sent a subscription that cannot be read" in caplog.text


def test_no_bytes_can_break_a_subscription() -> None:
    rng = Random(5)
    data = encode_subscription("cooperative-sticky", Subscription(("a", "b"), (A0, A1, B0), 7, "rack"))
    for _ in range(3000):
        mutated = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            mutated[rng.randrange(len(mutated))] = rng.randrange(256)
        subscription = decode_subscription("cooperative-sticky", "m", bytes(mutated[: rng.randrange(len(data) + 1)]))
        assert all(each.partition >= 0 for each in subscription.owned)
        assert subscription.generation >= -1


def test_an_assignment_is_read_back_sorted_and_each_partition_once() -> None:
    assert decode_assignment(encode_assignment([B0, A1, A0, A1])) == (A0, A1, B0)


def test_an_assignments_bytes_are_those_that_kafka_reads() -> None:
    assert encode_assignment([A1]) == bytes.fromhex("0000000000010001610000000100000001ffffffff")


@pytest.mark.parametrize("nothing", [b"", None, encode_assignment([])])
def test_no_bytes_and_no_partitions_are_an_empty_assignment(nothing: bytes | None) -> None:
    assert decode_assignment(nothing) == ()


def test_duplicates_and_negative_partitions_in_an_assignment_are_dropped() -> None:
    data = bytes.fromhex("0000000000010001610000000400000001ffffffff0000000100000000ffffffff")
    assert decode_assignment(data) == (A1, A0)


def test_an_assignment_that_cannot_be_read_is_the_leaders_fault() -> None:
    with pytest.raises(ProtocolError, match=r"the group's leader sent an assignment that cannot be read \(7 bytes\)"):
        decode_assignment(b"\x00\x00\x00\x00\x00\x05x")
