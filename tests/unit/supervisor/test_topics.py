"""What the subscription and the plan stand on, and what of it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from unittest import mock
from uuid import UUID

import pytest

from kunicorn.ipc.messages import Counted, Pong
from kunicorn.kafka.cluster import Cluster
from kunicorn.kafka.metadata import Broker, Metadata, PartitionInfo, TopicInfo, merge
from kunicorn.kafka.versions import RESPONSES, Api
from kunicorn.kafka_errors import ErrorCode
from kunicorn.observe import catalogue as c
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import TopicPartition
from kunicorn.supervisor import topics as topics_module
from kunicorn.supervisor.facts import SettingsInForce
from kunicorn.supervisor.topics import Departed, Topics, forget_departed
from tests.fakes.broker import Asked, FakeBroker, Reply, Script, cluster_of
from tests.fakes.complete_settings import settings_of
from tests.fakes.messages import blank, nested
from tests.fakes.virtual_loop import virtual_time

MAX_AGE = 0.001
"""Seconds: refresh at once."""


class Brokers(Cluster):
    """A cluster whose answers are written down here; nothing is connected to."""

    def __init__(self, *topics: TopicInfo) -> None:
        self.metadata = Metadata()
        self.now(*topics)
        self.asked: list[Collection[str] | None] = []
        self.asked_twice = asyncio.Event()

    def now(self, *topics: TopicInfo) -> None:
        nodes = {node: Broker(node, "127.0.0.1", 9092, f"rack-{node}") for node in (1, 2)}
        self.next = Metadata(nodes, {topic.name: topic for topic in topics})

    async def refresh(self, topics: Collection[str] | None) -> Metadata:
        self.asked.append(topics)
        if len(self.asked) > 1:
            self.asked_twice.set()
        self.metadata = self.next
        return self.metadata

    def ask_another(self) -> None:
        pass

    async def name_topics(self, topic_ids: Collection[UUID]) -> Mapping[UUID, str]:
        self.metadata = self.next
        return {t.topic_id: name for name, t in self.metadata.topics.items() if t.topic_id in topic_ids and t.topic_id}


def topic(name: str, partitions: int = 1, identity: int = 1, node: int = 1) -> TopicInfo:
    info = PartitionInfo(leader=node, leader_epoch=0, replicas=(node,))
    return TopicInfo(name, UUID(int=identity), partitions=dict.fromkeys(range(partitions), info))


def watching(wanted: list[str], *there: TopicInfo, brokers_match: bool = False) -> tuple[Brokers, Topics]:
    """Brokers with these topics, and who watches the wanted ones."""
    brokers = Brokers(*there)
    return brokers, Topics(wanted, brokers, brokers_match=brokers_match)


async def known(wanted: list[str], *there: TopicInfo, brokers_match: bool = False) -> tuple[Brokers, Topics]:
    """Likewise, and the brokers were asked."""
    brokers, topics = watching(wanted, *there, brokers_match=brokers_match)
    await topics.refresh()
    return brokers, topics


@pytest.mark.scenario("0113 k_add_partition", "0045 subscribe_update")
async def test_more_partitions_ask_for_another_join_and_are_named() -> None:
    brokers, topics = watching(["orders"], topic("orders"))
    topics.subscribe()
    await topics.plan_for(["orders"], by_rack=False)
    brokers.now(topic("orders", 3))
    assert await topics.changes(MAX_AGE) == "topics changed: orders: 1 to 3 partitions"


async def test_a_topic_that_comes_or_goes_is_told_as_such_and_not_by_numbers_of_partitions() -> None:
    brokers, topics = watching(["^refunds-.*"], topic("refunds-a", 3))
    topics.subscribe()
    await topics.plan_for(["refunds-a"], by_rack=False)
    brokers.now(topic("refunds-b", 2, identity=2))
    assert await topics.changes(MAX_AGE) == "topics changed: refunds-a is gone, refunds-b is new"


def counted(topics: Topics) -> list[bool]:
    """An item for each time that a topic is told to be another one."""
    told: list[bool] = []
    tell = topics.recreated.set

    def count() -> None:
        told.append(True)
        tell()

    topics.recreated.set = count  # type: ignore[method-assign]
    return told


async def changed(topics: Topics) -> str | None:
    """What the next refresh finds; None where nothing has changed."""
    brokers = topics._cluster
    assert isinstance(brokers, Brokers)
    brokers.asked.clear()
    brokers.asked_twice.clear()
    waiting = asyncio.create_task(topics.changes(MAX_AGE))
    again = asyncio.create_task(brokers.asked_twice.wait())
    await asyncio.wait({waiting, again}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert waiting.done() or again.done(), "nothing was asked"
    waiting.cancel()
    again.cancel()
    return waiting.result() if waiting.done() else None


async def test_a_follower_leaves_more_partitions_to_its_leader_and_joins_for_other_topics_only() -> None:
    brokers, follower = await known(["^orders-"], topic("orders-eu"))
    follower.subscribe()
    brokers.now(topic("orders-eu", 3))
    assert await changed(follower) is None
    brokers.now(topic("orders-eu", 3), topic("orders-us", 2))
    assert await changed(follower) == "topics changed: orders-us is new"
    follower.subscribe()
    brokers.now(topic("orders-us", 2))
    assert await changed(follower) == "topics changed: orders-eu is gone"


async def test_a_topic_that_a_leader_meets_first_when_it_plans_is_still_to_be_joined_for() -> None:
    brokers, leader = await known(["^orders-"], topic("orders-eu"))
    brokers.now(topic("orders-eu"), topic("orders-us"))
    joined = leader.subscribe()
    await leader.plan_for(joined, by_rack=False)
    assert joined == ("orders-eu",)
    assert await changed(leader) == "topics changed: orders-us is new"
    await leader.plan_for(leader.subscribe(), by_rack=False)
    assert await changed(leader) is None


async def test_brokers_that_match_no_patterns_are_asked_soon_for_the_topics_that_the_patterns_name() -> None:
    brokers, topics = watching(["^orders-"], topic("orders-eu"), brokers_match=True)
    brokers.next = Metadata()
    await topics.refresh()
    brokers.now(topic("orders-eu"))
    topics.match_here()
    await topics.plan_for(topics.subscribe(), by_rack=False)
    async with asyncio.timeout(60):
        assert await topics.changes(max_age=3600) == "topics changed: orders-eu is new"
    assert topics.subscribe() == ("orders-eu",)


async def test_a_leader_that_leads_no_more_has_no_partitions_to_compare() -> None:
    _, topics = await known(["orders"], topic("orders"))
    topics.subscribe()
    await topics.plan_for(["orders", "refunds"], by_rack=True)
    topics.subscribe()
    topics.stop_leading()
    assert await changed(topics) is None


async def test_partitions_that_are_added_cost_one_rebalance_whatever_the_number_of_followers() -> None:
    groups = [Topics(["orders"], Brokers(topic("orders", 1000))) for _ in range(501)]
    leader = groups[0]
    rebalances = 0

    async def rebalance() -> None:
        for member in groups:
            member.subscribe()
        await leader.plan_for(["orders"], by_rack=False)
        for member in groups[1:]:
            member.stop_leading()

    for member in groups:
        await member.refresh()
    await rebalance()
    for member in groups:
        member._cluster.now(topic("orders", 1020))  # type: ignore[attr-defined]
    # Everybody looks again at another time.
    for member in [*groups[250:], *groups[:250]] * 2:
        if await changed(member) is not None:
            rebalances += 1
            await rebalance()
    assert rebalances == 1


@pytest.mark.scenario(
    "testStaticLeaderRejoinsGroupAndCanDetectMetadataChangesForOtherMembers", "testRebalanceAfterTopicUnavailable*"
)
async def test_a_leader_watches_the_topics_of_all_members() -> None:
    brokers, topics = watching(["orders"], topic("orders"), topic("refunds"))
    await topics.plan_for(["orders", "refunds"], by_rack=False)
    brokers.now(topic("orders"), topic("refunds", 2))
    assert "refunds: 1 to 2" in await topics.changes(MAX_AGE)


@pytest.mark.scenario("testRackAwareConsumerRebalance*", "0045 subscribe_update")
async def test_replicas_in_other_racks_ask_for_another_plan_only_where_members_name_their_racks() -> None:
    for by_rack in (True, False):
        brokers, topics = watching(["orders"], topic("orders"))
        ground = await topics.plan_for(["orders"], by_rack=by_rack)
        assert ground.racks == ({TopicPartition("orders", 0): frozenset({"rack-1"})} if by_rack else {})
        brokers.now(topic("orders", node=2))
        waiting = asyncio.create_task(topics.changes(MAX_AGE))
        done, _ = await asyncio.wait({waiting}, timeout=60 if by_rack else 0.2)
        waiting.cancel()
        assert bool(done) is by_rack


async def test_a_broker_that_dies_and_one_that_comes_back_ask_for_no_plan_although_members_name_their_racks() -> None:
    brokers, topics = await known(["orders"], topic("orders", node=2))
    topics.subscribe()
    await topics.plan_for(["orders"], by_rack=True)
    everybody = brokers.next
    for alive in ({1}, {1, 2}):
        nodes = {node: broker for node, broker in everybody.brokers.items() if node in alive}
        brokers.next = merge(brokers.metadata, replace(everybody, brokers=nodes), ["orders"])
        assert await changed(topics) is None


async def test_patterns_leave_out_the_topics_of_kafka_itself_and_names_do_not() -> None:
    internal = [replace(topic(name, 50), is_internal=True) for name in ("__consumer_offsets", "__transaction_state")]
    brokers = Brokers(topic("orders"), topic("__mine"), *internal)
    for wanted, subscribed in {
        "^.*": ("__mine", "orders"),
        "^.*s$": ("orders",),
        "^__": ("__mine",),
        "__consumer_offsets": ("__consumer_offsets",),
    }.items():
        topics = Topics([wanted], brokers)
        await topics.refresh()
        assert topics.subscribed() == subscribed


async def test_another_id_under_the_same_name_is_told_once_and_remembered() -> None:
    brokers, topics = watching(["orders"], topic("orders", identity=1))
    told = counted(topics)
    await topics.refresh()
    assert not topics.created_anew("orders")
    brokers.now(topic("orders", identity=2))
    await topics.refresh()
    assert topics.topic_id("orders") == UUID(int=1), "one answer may be a broker's that has not heard of it"
    await topics.refresh()
    await topics.refresh()
    assert told == [True]
    assert topics.created_anew("orders")
    assert topics.topic_id("orders") == UUID(int=2)


async def test_an_id_that_differs_is_asked_for_again_soon() -> None:
    brokers, topics = await known(["orders"], topic("orders", identity=1))
    brokers.now(topic("orders", identity=2))
    await topics.refresh()
    asking = asyncio.create_task(topics.changes(max_age=3600))
    async with asyncio.timeout(60):
        await topics.recreated.wait()
    asking.cancel()


async def test_brokers_of_different_age_do_not_make_a_topic_anew_at_each_turn() -> None:
    brokers, topics = watching(["orders"], topic("orders", identity=1))
    told = counted(topics)
    for identity in (1, 2, 2, 1, 2, 1, 1, 2, 1):
        brokers.now(topic("orders", identity=identity))
        await topics.refresh()
    assert told == [True]
    assert topics.topic_id("orders") == UUID(int=2)


async def test_an_id_under_which_the_coordinator_assigns_counts_at_once() -> None:
    brokers, topics = await known(["orders"], topic("orders", identity=1), brokers_match=True)
    brokers.now(topic("orders", identity=2))
    await topics.name([UUID(int=2)])
    assert topics.topic_id("orders") == UUID(int=2)


def telling(broker: FakeBroker, errors: Mapping[str, int]) -> Script:
    """Metadata of these topics, by the error that each has: an answer about all topics leaves out those with one."""

    def metadata(asked: Asked) -> Reply:
        schema, named = RESPONSES[asked.api, asked.version], asked.message.topics
        wanted = [name for name, error in errors.items() if not error] if named is None else [t.name for t in named]
        return blank(
            schema,
            brokers=(nested(schema, "brokers")(node_id=1, host="127.0.0.1", port=broker.port),),
            topics=tuple(blank(nested(schema, "topics"), name=name, error_code=errors[name]) for name in wanted),
        )

    return metadata


async def test_with_a_pattern_a_topic_that_was_deleted_is_gone_and_one_that_may_not_be_seen_is_not() -> None:
    """Commits and drains of a topic that is gone are given up, and the group waits for them until then."""
    errors = {"orders": 0, "refunds-a": 0, "refunds-b": 0, "letters": int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)}
    async with FakeBroker(1) as broker:
        broker.script[Api.METADATA] = telling(broker, errors)
        cluster = cluster_of(broker)
        topics = Topics(["orders", "^refunds-"], cluster)
        await topics.refresh()
        topics.subscribe()
        errors |= {
            "orders": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "refunds-a": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "refunds-b": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        }
        await topics.refresh(["letters"])
        assert [name for name in errors if topics.is_gone(name)] == ["refunds-a"]
        assert topics.missing() == [("orders", ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
        assert cluster.metadata.topics["letters"].error == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        topics.forget(["refunds-a", "refunds-b"])
        await topics.refresh()
        assert (topics.subscribed(), topics.remembered) == (("orders",), {"orders"})
        await cluster.close()


async def test_where_brokers_match_the_pattern_nobody_asks_for_all_topics() -> None:
    brokers, topics = await known(
        ["orders", "^refunds-", "^returns$"], topic("refunds-eu", identity=7), brokers_match=True
    )
    assert brokers.asked == [{"orders"}]
    assert topics.pattern == "(?:^refunds-).*|(?:^returns$).*"
    assert await topics.name([UUID(int=7)]) == {UUID(int=7): "refunds-eu"}
    assert topics.subscribed() == ("orders", "refunds-eu")
    topics.match_here()
    await topics.refresh()
    assert brokers.asked == [{"orders"}, None, {"orders"}], "by its name what the answer about all lacks"


async def test_the_brokers_are_asked_which_topic_has_the_name_until_two_answers_agree() -> None:
    brokers, topics = await known(["orders"], topic("orders", identity=1))
    await topics.confirm_ids(["orders"])
    assert (len(brokers.asked), topics.recreated.is_set()) == (2, False)
    brokers.now(topic("orders", identity=2))
    await topics.confirm_ids(["orders"])
    assert (len(brokers.asked), topics.recreated.is_set()) == (4, True)
    assert topics.topic_id("orders") == UUID(int=2)


async def test_one_broker_alone_that_is_behind_does_not_say_that_a_topic_was_created_anew() -> None:
    """It is cut off from the controller, and has just got its turn to be asked."""
    leads = {"orders": {0: (1, 5)}}
    async with FakeBroker(1) as one, FakeBroker(2) as two:
        brokers = [one, two]
        for each in brokers:
            each.lead(brokers, leads, {"orders": UUID(int=2)})
        cluster = cluster_of(one)
        topics = Topics(["orders"], cluster)
        await topics.refresh()
        behind = two if one.apis()[-1] is Api.METADATA else one
        behind.lead(brokers, leads, {"orders": UUID(int=1)})
        cluster.ask_another()
        await topics.confirm_ids(["orders"])
        assert behind.apis()[-1] is Api.METADATA
        assert (topics.topic_id("orders"), topics.recreated.is_set()) == (UUID(int=2), False)
        for each in brokers:
            each.lead(brokers, leads, {"orders": UUID(int=3)})
        await topics.confirm_ids(["orders"])
        assert (topics.topic_id("orders"), topics.recreated.is_set()) == (UUID(int=3), True)
        await cluster.close()


async def had_back() -> tuple[Brokers, Topics]:
    """The coordinator has assigned under id 2; a broker that is behind, asked alone while no other one was well for a
    moment, had id 1 back."""
    brokers, topics = await known(["orders"], topic("orders", identity=1), brokers_match=True)
    brokers.now(topic("orders", identity=2))
    await topics.name([UUID(int=2)])
    brokers.now(topic("orders", identity=1))
    await topics.confirm_ids(["orders"])
    topics.recreated.clear()
    topics.subscribe()
    return brokers, topics


async def test_an_id_that_one_broker_alone_had_back_is_doubted_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "_HURRY", 0.01)
    brokers, topics = await had_back()
    assert topics.topic_id("orders") == UUID(int=1)
    asking = asyncio.create_task(topics.changes(max_age=3600))
    brokers.now(topic("orders", identity=2))
    async with asyncio.timeout(60):
        await topics.recreated.wait()
    asking.cancel()
    assert topics.topic_id("orders") == UUID(int=2)


async def test_an_id_that_one_broker_alone_had_back_is_doubted_again_where_that_broker_alone_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would be believed until the metadata is as old as it may get: minutes without a commit, and all that was
    handled meanwhile handled again by whoever has the partition next."""
    monkeypatch.setattr(topics_module, "_HURRY", 0.01)
    brokers, topics = await had_back()
    brokers.asked.clear()
    brokers.asked_twice.clear()
    asking = asyncio.create_task(topics.changes(max_age=3600))
    async with asyncio.timeout(60):
        await brokers.asked_twice.wait()
        assert topics.topic_id("orders") == UUID(int=1)
        brokers.now(topic("orders", identity=2))
        await topics.recreated.wait()
    asking.cancel()
    assert topics.topic_id("orders") == UUID(int=2)


@pytest.mark.parametrize("told", [0, 2])
async def test_one_broker_alone_that_is_behind_takes_neither_a_topic_nor_partitions_from_the_group(told: int) -> None:
    """It is cut off from the controllers, and is the one that is asked as a plan is made."""
    async with FakeBroker(1) as one, FakeBroker(2) as two:
        brokers = [one, two]
        for each in brokers:
            each.lead(brokers, {"orders": dict.fromkeys(range(4), (1, 5))})
        cluster = cluster_of(one)
        topics = Topics(["orders"], cluster)
        await topics.refresh()
        topics.subscribe()
        asked_two = len(two.apis())
        await topics.plan_for(["orders"], by_rack=False)
        behind = one if len(two.apis()) > asked_two else two
        behind.lead(brokers, {"orders": dict.fromkeys(range(told), (1, 5))})
        asked = len(behind.apis())
        cluster.ask_another()
        assert (await topics.plan_for(topics.subscribe(), by_rack=False)).counts == {"orders": 4}
        assert len(behind.apis()) > asked
        await cluster.close()


async def test_neither_does_one_that_is_asked_for_changes() -> None:
    brokers, topics = await known(["^orders-"], topic("orders-eu"), topic("orders-us", 4))
    await topics.plan_for(topics.subscribe(), by_rack=False)
    whole = brokers.next

    def another() -> None:
        brokers.next = whole

    for behind in ([topic("orders-eu")], [topic("orders-eu"), topic("orders-us", 2)]):
        brokers.now(*behind)
        with mock.patch.object(brokers, "ask_another", another):
            assert await changed(topics) is None
        assert topics.subscribed() == ("orders-eu", "orders-us")


async def test_fewer_partitions_count_when_two_answers_say_so_and_for_a_leader_that_knows_nothing_at_once() -> None:
    for had, asked in ((0, 1), (4, 2)):
        brokers, topics = await known(["orders"], topic("orders", had))
        brokers.now(topic("orders", 2))
        brokers.asked.clear()
        assert (await topics.plan_for(topics.subscribe(), by_rack=False)).counts == {"orders": 2}
        assert len(brokers.asked) == asked


@virtual_time(sockets=False)
async def test_where_every_broker_that_is_asked_is_behind_it_is_over_within_seconds_after_that() -> None:
    brokers, topics = await known(["orders"], topic("orders", 4))
    brokers.now(topic("orders", 2))
    await topics.plan_for(topics.subscribe(), by_rack=False)
    waiting = asyncio.create_task(topics.changes(max_age=300))
    await asyncio.sleep(10)
    brokers.now(topic("orders", 4))
    async with asyncio.timeout(10):
        assert await waiting == "topics changed: orders: 2 to 4 partitions"


@virtual_time(sockets=False)
async def test_a_topic_that_is_gone_for_good_is_looked_for_ever_more_rarely() -> None:
    brokers, topics = await known(["^refunds-"], topic("refunds-a"), topic("refunds-b", identity=2))
    topics.subscribe()
    asking = asyncio.create_task(topics.changes(max_age=300))
    brokers.now(topic("refunds-a"))
    async with asyncio.timeout(301):
        assert await asking == "topics changed: refunds-b is gone"
    brokers.asked.clear()
    asking = asyncio.create_task(topics.changes(max_age=300))
    await asyncio.sleep(3600)
    assert not asking.done()
    asking.cancel()
    assert sum(asked is None for asked in brokers.asked) < 3600 / 300 + 10


@virtual_time(sockets=False)
async def test_what_an_answer_to_another_question_left_out_of_a_join_is_joined_for_soon() -> None:
    brokers, topics = watching(["^refunds-"], topic("refunds-a"), topic("refunds-b", identity=2))
    await topics.plan_for(["refunds-a", "refunds-b"], by_rack=False)
    topics.stop_leading()
    brokers.now(topic("refunds-a"))
    await topics.refresh()
    assert topics.subscribe() == ("refunds-a",)
    brokers.now(topic("refunds-a"), topic("refunds-b", identity=2))
    async with asyncio.timeout(5):
        assert await topics.changes(max_age=300) == "topics changed: refunds-b is new"


async def test_which_topic_has_a_name_is_asked_where_there_was_none_of_it_before() -> None:
    """A plan may give partitions of it to a member that has not heard of it yet."""
    gone = TopicInfo("orders", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    brokers, topics = await known(["orders"], gone)
    brokers.now(topic("orders", identity=2))
    await topics.confirm_ids(["orders"])
    assert (topics.topic_id("orders"), topics.is_gone("orders")) == (UUID(int=2), False)


async def test_brokers_that_know_no_ids_are_not_asked_for_them() -> None:
    brokers, topics = await known(["orders"], replace(topic("orders"), topic_id=None))
    await topics.confirm_ids(["orders"])
    assert len(brokers.asked) == 1


def test_a_topic_is_to_be_forgotten_a_quarter_of_an_hour_after_it_was_last_ours_or_there() -> None:
    there = {"day-1", "day-2"}
    departed = Departed(lambda name: name in there)
    assert departed.look({"day-1", "day-2"}, 0) == []
    assert departed.look({"day-2"}, 1000) == [], "another member may have it, and it may come back"
    there.remove("day-1")
    assert departed.look({"day-2"}, 1899) == []
    assert departed.look({"day-2"}, 1900) == ["day-1"]
    assert departed.look({"day-2"}, 9000) == [], "once"
    there.remove("day-2")
    assert departed.look({"day-2"}, 20000) == [], "a worker has it still"
    assert departed.look((), 20900) == ["day-2"]


def test_a_topic_that_was_sent_to_and_never_was_there_is_to_be_forgotten_after_as_long() -> None:
    departed = Departed(lambda name: name == "letters")
    assert departed.look((), 0, {"letters", "no-such-topic"}) == []
    assert departed.look((), 899, {"letters", "no-such-topic"}) == []
    assert departed.look((), 900, {"letters", "no-such-topic"}) == ["no-such-topic"]
    assert departed.look((), 901, {"no-such-topic"}) == [], "it was sent to again"


@virtual_time(sockets=False)
async def test_nothing_is_left_of_a_topic_that_is_gone_where_brokers_match_the_pattern() -> None:
    brokers, metrics = Brokers(topic("day-1"), topic("orders", identity=2)), Metrics()
    forgotten: list[str] = []
    topics = Topics(["^day-.*", "orders"], brokers, brokers_match=True)
    await topics.name([UUID(int=1)])
    await topics.refresh()
    metrics.count(c.CONSUMED, topic="day-1")
    metrics.hear(1, Pong(1, 1, 1, None, 1, False, 0, [Counted(c.SENT.name, ["no-such-topic", ""], 1)]))
    ours = [TopicPartition("day-1", 0)]
    asking = asyncio.create_task(forget_departed(topics, ours, metrics, forgotten.append))
    await asyncio.sleep(1)
    assert topics.subscribed() == ("day-1", "orders")
    ours.clear()
    gone = replace(topic("day-1"), error=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    brokers.now(gone, topic("orders", identity=2))
    await asyncio.sleep(2000)
    asking.cancel()
    assert topics.subscribed() == ("orders",)
    assert set(brokers.metadata.topics) == {"orders"}
    assert not metrics.outputs
    assert sorted(forgotten) == ["day-1", "no-such-topic"]
    assert not any("day-1" in str(family.samples) for family in metrics._registry.collect())
    brokers.now(topic("day-1", identity=3), topic("orders", identity=4))
    await topics.name([UUID(int=3), UUID(int=4)])
    assert [topics.created_anew(name) for name in ("day-1", "orders")] == [False, True]


def test_nothing_that_was_looked_up_for_a_topic_is_left_in_the_settings_in_force_once_it_is_gone() -> None:
    settings = settings_of(group={"topics": ["^day-.*"]}, handler={"delay_ms": 60_000})
    in_force = SettingsInForce(settings, lambda: settings)
    assert [in_force.delay_ms(name) for name in ("day-1", "day-2")] == [60_000, 60_000]
    in_force.forget("day-1")
    in_force.forget("never seen")
    assert in_force._delays_ms.keys() == {"day-2"}


@virtual_time(sockets=False)
async def test_nothing_is_left_either_of_a_topic_that_is_gone_and_was_another_members() -> None:
    brokers, forgotten = Brokers(topic("day-1"), topic("day-2", identity=2)), list[str]()
    topics = Topics(["^day-.*"], brokers)
    await topics.refresh()
    asking = asyncio.create_task(forget_departed(topics, [], Metrics(), forgotten.append))
    await asyncio.sleep(1)
    brokers.now(topic("day-2", identity=2))
    await topics.refresh()
    await asyncio.sleep(2000)
    asking.cancel()
    assert [topics._ids.now(name) for name in ("day-1", "day-2")] == [None, UUID(int=2)]
    assert forgotten == ["day-1"]


def test_a_topic_is_there_while_the_newest_metadata_has_it() -> None:
    brokers, topics = watching(["^orders.*", "refunds"], topic("orders"))
    asyncio.run(topics.refresh())
    assert [topics.exists(name) for name in ("orders", "refunds", "another")] == [True, False, False]
    brokers.now(replace(topic("refunds"), error=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)))
    asyncio.run(topics.refresh())
    assert [topics.exists(name) for name in ("orders", "refunds")] == [False, False]
    brokers.now(replace(topic("refunds"), error=int(ErrorCode.LEADER_NOT_AVAILABLE)))
    asyncio.run(topics.refresh())
    assert topics.exists("refunds")
