"""How a story's worker is set up, what its partitions hold, and what may happen to it: drawn before anything does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from confluent_kafka import Message

from kunicorn.handler.config import (
    Batching,
    CircuitBreaking,
    DeadLetterTarget,
    Decoding,
    FilterRule,
    HandlerConfig,
    ProducingTarget,
    RateLimiting,
)
from kunicorn.ipc.messages import Configure
from kunicorn.positions import TopicPartition
from tests.contract.worker.choices import Choices
from tests.contract.worker.handlers import KEEPING
from tests.contract.worker.stepping import FOR_EVER, START
from tests.contract.worker.truth import Log, Record, epoch_of

TOPIC, OTHER, GROUP, DEAD = "in", "other", "group", "dead"
_HERE = "tests.contract.worker.handlers:"
_WINDOW = 4096

STORES_FROM = 500
"""Stories of this seed up to the next ones are of letters whose topics are away, and of handlers that keep their
offsets."""
OWN_FROM = 1000
"""Stories of this seed up to the next ones are of our own fetcher."""
GATES_FROM = 1500
"""Stories of this seed up to the next ones are of filters, circuit breakers and rate limits."""
DECODERS_FROM = 2000
"""Stories of this seed and higher ones are of records that cannot be decoded, for good or for now."""

ACTS: Mapping[str, int] = {
    "answer": 8,
    "arrive": 4,
    "start": 4,
    "stop": 2,
    "lose": 1,
    "renew": 2,
    "time_out": 1,
    "interrupt": 1,
    "ping": 1,
    "kill": 1,
    "kill_at_store": 1,
    "reload": 1,
    "compact": 1,
    "commit": 1,
}
"""What may happen, and how often beside the others."""
_ALWAYS = ("answer", "arrive", "start", "renew")

TROUBLE: Mapping[str, int] = {
    "raise": 4,
    "skip": 1,
    "letter": 1,
    "halt": 2,
    "exit": 1,
    "part": 2,
    "decide": 2,
    "slip": 1,
    "slow": 4,
}
"""What handlers may do instead of returning at once, likewise."""

LEGIBLE, SPOILT, DEADLY = b'{"number": 1}', b"spoilt", b"deadly"
"""A value that can be decoded, one that cannot, and one by which decoders of single values end otherwise."""
FILTERED_KEY = b"c"
"""Records with it are dropped where a way filters."""
_FILTER = FilterRule(on="key", none_of=[FILTERED_KEY.decode()])
_TROUBLE = "tests.contract.worker.handling.Trouble"
_BREAKER = CircuitBreaking([_TROUBLE], failure_share=0.3, window_ms=1000, min_calls=2, open_ms=50, probes=2)
_RATES = {
    "rate": RateLimiting(20.0, 3.0, per="worker", counts="records"),
    "rate of calls": RateLimiting(20.0, 2.0, per="worker", counts="calls"),
    "rate of keys": RateLimiting(20.0, 2.0, per="key", counts="records"),
}


@dataclass(frozen=True, slots=True)
class Way:
    """How one handler is called."""

    entry: str
    mode: str = "record"
    ordering: str = "partition"
    concurrency: int = 1
    batch_max_records: int = 4
    batch_max_ms: int = 0
    filters: bool = False
    """Records with a certain key do not come to it."""
    gate: str = ""
    """What is before its calls: "breaker", or one of `_RATES`."""
    across: bool = False
    """A batch has records of all partitions."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One story's."""

    ways: Mapping[str, Way]
    """By the topics whose records they get."""
    delivery: str | None
    attempts: int
    on_failure: str
    max_records: int
    max_bytes: int
    max_ms: int
    ahead_bytes: int
    acts: tuple[str, ...]
    trouble: tuple[str, ...]
    trouble_percent: int
    refused_percent: int
    keeps_positions: bool
    lease_ns: int
    """So long it lasts, each time that it is renewed."""
    budget: int
    act_every: int
    interrupted_every: int
    """How many points there are, on average, between two at which a thread gives way; 0: it never does."""
    fetcher: str = "librdkafka"
    letters_refused_percent: int = 0
    """So many letters are refused, as their topic is away."""
    returns: bool = False
    """Handlers return their outcomes; else they raise them."""
    keeps_offsets: bool = False
    """Handlers store the offset behind what they have done with it, and say where a partition goes on."""
    decodes: bool = False
    """Values are decoded, which some cannot be."""
    on_undecodable: str | None = None
    """None: as `on_failure` says."""
    delay_ms: int = 0
    """So long after its timestamp a record comes to its handler, at the earliest."""

    @classmethod
    def without_chance(cls, **others: Any) -> Self:
        """Of a worker to which nothing happens but what the test has happen. `others`: what it is about."""
        return cls(
            attempts=2,
            max_bytes=1_000_000,
            max_ms=5,
            acts=(),
            trouble=(),
            trouble_percent=0,
            refused_percent=0,
            keeps_positions=False,
            lease_ns=FOR_EVER - START,
            budget=1 << 30,
            act_every=0,
            interrupted_every=7,
            **others,
        )

    def way(self, topic: str) -> Way:
        """How the handler of that topic's records is called."""
        return self.ways[topic]

    @property
    def in_transactions(self) -> bool:
        """Whether the brokers' offsets count, not the ledger's."""
        return self.delivery == "transactions"

    def configure(self) -> Configure:
        """What the worker is told first."""
        producing = None
        if self.delivery is not None:
            client: dict[str, str | int | float | bool] = {}
            if self.in_transactions:
                client = {"transactional.id": "t", "transaction.timeout.ms": 60_000}
            producing = ProducingTarget(
                self.delivery, "out", GROUP, client, self.max_records, self.max_bytes, self.max_ms
            )
        orders = [self._order(topic, way) for topic, way in self.ways.items()]
        letters = DeadLetterTarget(DEAD, GROUP, {})
        ahead, fetcher = self.ahead_bytes, self.fetcher
        return Configure(0, GROUP, orders, {}, [], "ERROR", "text", None, letters, ahead, producing, fetcher=fetcher)

    def _order(self, topic: str, way: Way) -> HandlerConfig:
        return HandlerConfig(
            _HERE + way.entry,
            way.mode,
            {},
            way.batch_max_records,
            self.attempts,
            10,
            40,
            on_failure=self.on_failure,
            ordering=way.ordering,
            concurrency=way.concurrency,
            batching=Batching(None, way.batch_max_ms, memory_bytes=100_000, batch_across_partitions=way.across),
            filters=[_FILTER] if way.filters else [],
            circuit_breaker=_BREAKER if way.gate == "breaker" else None,
            rate_limit=_RATES.get(way.gate),
            topics=[topic] if len(self.ways) > 1 else [],
            decoding=self._decoding(way),
            delay_ms=self.delay_ms or None,
        )

    def _decoding(self, way: Way) -> Decoding:
        if not self.decodes:
            return Decoding()
        if way.mode == "arrow":
            return Decoding("json", on_undecodable=self.on_undecodable, value_schema=f"{_HERE}Legible")
        return Decoding(f"{_HERE}decoded", on_undecodable=self.on_undecodable)


def drawn(choices: Choices) -> Plan:
    """One worker's settings, and its world's."""
    delivery = choices.pick((None, "at_least_once", "at_least_once", "transactions"))
    ways = {TOPIC: _way_drawn(choices, delivery)}
    if choices.chance(30):
        ways[OTHER] = _way_drawn(choices, delivery)
    acts = [act for act in ACTS if act in _ALWAYS or choices.chance(50)]
    trouble = [kind for kind in TROUBLE if choices.chance(50)]
    refused = choices.pick((0, 5, 20, 50)) if delivery is not None else 0
    max_records = choices.pick((10_000, 2, 4, 8))
    attempts = choices.pick((1, 2, 3))
    on_failure = choices.pick(("halt", "skip", "dead_letter"))
    return Plan(
        ways=ways,
        delivery=delivery,
        attempts=attempts,
        on_failure=on_failure,
        max_records=max_records,
        max_bytes=choices.pick((1_000_000, 1000, 3000)),
        max_ms=choices.pick((5, 50)),
        ahead_bytes=choices.pick((1_000_000, 2000)),
        acts=tuple(act for act in acts for _ in range(ACTS[act])),
        trouble=tuple(kind for kind in trouble for _ in range(TROUBLE[kind])),
        trouble_percent=choices.pick((0, 5, 20, 40)),
        refused_percent=refused,
        keeps_positions=choices.chance(20),
        lease_ns=choices.pick((10_000, 1_000, 400)) * 1_000_000,
        budget=choices.pick((10, 20, 40)),
        act_every=choices.pick((4, 2, 8)),
        interrupted_every=choices.pick((0, 5, 30)),
    )


def with_stores(choices: Choices, plan: Plan) -> Plan:
    """The same, where topics of letters are away at times, most handlers take batches and say how each of their records
    ends, and partitions go to other workers often. In three of four nothing but letters is sent, and in half of those
    handlers keep their offsets."""
    only_letters = choices.chance(75)
    keeps_offsets = only_letters and choices.chance(67)
    ways = {topic: _way_of_stores(choices, way, plain=only_letters) for topic, way in plan.ways.items()}
    if keeps_offsets:
        kept = {topic: replace(way, entry=KEEPING[way.entry], ordering="partition") for topic, way in ways.items()}
        ways = kept
    return replace(
        plan,
        ways=ways,
        delivery=None if only_letters else plan.delivery,
        refused_percent=0 if only_letters else plan.refused_percent,
        letters_refused_percent=choices.pick((50, 80, 20)),
        keeps_offsets=keeps_offsets,
        acts=(*plan.acts, *("stop",) * 6, "reload"),
        trouble=(*plan.trouble, *("decide",) * 4, "part", "slow"),
        trouble_percent=choices.pick((60, 40)),
    )


def _way_of_stores(choices: Choices, way: Way, *, plain: bool) -> Way:
    """`plain`: it yields nothing."""
    if choices.chance(75):
        entry, records = choices.pick(("batch", "batch_async")), choices.pick((8, 4))
        return Way(entry, "batch", batch_max_records=records, batch_max_ms=way.batch_max_ms)
    return replace(way, entry=way.entry.replace("yielding", "record")) if plain else way


def with_gates(choices: Choices, plan: Plan) -> Plan:
    """The same, where most handlers are behind a filter, a circuit breaker or a rate limit, ask for time, and say by
    what they return, as often as by what they raise, how records end."""
    return replace(
        plan,
        ways={topic: _way_with_gate(choices, way, plan.delivery) for topic, way in plan.ways.items()},
        # What the breaker is open for counts as no try, so that a record is passed over later than a story knows.
        on_failure=choices.pick(("dead_letter", "halt")),
        attempts=choices.pick((3, 2, 1)),
        trouble=(*plan.trouble, *("wait",) * 4, *("raise",) * 4, *("part",) * 3, *("decide",) * 3, "slip"),
        trouble_percent=choices.pick((30, 50)),
        letters_refused_percent=choices.pick((0, 0, 50)),
        returns=choices.chance(50),
    )


def with_decoders(choices: Choices, plan: Plan) -> Plan:
    """The same, where values are decoded by what is away at times, and most handlers take batches and fail as a whole,
    by what they raise or by what they return."""
    return replace(
        plan,
        ways={topic: _way_that_decodes(choices, way, plan.delivery) for topic, way in plan.ways.items()},
        acts=(*plan.acts, "registry", "registry", "time_out", "time_out"),
        trouble=(*plan.trouble, *("raise",) * 4, *("skip",) * 4, *("letter",) * 4, "halt", "exit", "slow", "part"),
        trouble_percent=choices.pick((30, 60)),
        returns=choices.chance(50),
        decodes=True,
        on_undecodable=choices.pick((None, "skip", "dead_letter", "halt", "dead_letter", "skip")),
    )


def _way_that_decodes(choices: Choices, way: Way, delivery: str | None) -> Way:
    if delivery is None and choices.chance(40):
        return Way("columns", "arrow", batch_max_records=choices.pick((8, 16)), across=choices.chance(70))
    if choices.chance(60):
        entry = choices.pick(("batch", "batch_async", "batch" if delivery is None else "yielding_batch"))
        way = Way(entry, "batch", batch_max_records=choices.pick((8, 4)), batch_max_ms=way.batch_max_ms)
    return replace(way, filters=choices.chance(30))


def _way_with_gate(choices: Choices, way: Way, delivery: str | None) -> Way:
    gate = choices.pick(("breaker", "", *_RATES, "breaker", "breaker"))
    if choices.chance(40):
        way = Way("batch", "batch", batch_max_records=choices.pick((4, 8)))
    if delivery is None and choices.chance(60):
        return Way("columns", "arrow", batch_max_records=choices.pick((8, 16)), gate=gate, across=True)
    way = replace(way, gate=gate, filters=choices.chance(50))
    if way.mode == "batch" and delivery is not None and choices.chance(40):
        return replace(way, entry="yielding_batch")
    return way


def _way_drawn(choices: Choices, delivery: str | None) -> Way:
    mode = choices.pick(("record", "record", "batch"))
    entry = _entry(choices, mode, delivery, choices.chance(25))
    several = mode == "record" and choices.chance(45)
    ordering = choices.pick(("key", "none", "partition")) if several else "partition"
    concurrency = choices.pick((2, 3, 5)) if several else 1
    batch_max_records = choices.pick((4, 1, 2, 8))
    waits = choices.pick((0, 50, 1000)) if mode == "batch" else 0
    return Way(entry, mode, ordering, concurrency, batch_max_records, waits)


def _entry(choices: Choices, mode: str, delivery: str | None, asynchronous: bool) -> str:
    kind = "yielding" if mode == "record" and delivery is not None and choices.chance(40) else mode
    return kind + ("_async" if asynchronous else "")


def logs_drawn(choices: Choices, plan: Plan) -> dict[TopicPartition, Log]:
    """One to three partitions of each topic, with the gaps that markers, aborted and compacted records leave."""
    spoilt = 25 if plan.decodes else 0
    logs = [
        _log_drawn(choices, TopicPartition(topic, at), spoilt)
        for topic in plan.ways
        for at in range(1 + choices.below(3))
    ]
    return {log.tp: log for log in logs}


def _log_drawn(choices: Choices, tp: TopicPartition, spoilt_percent: int) -> Log:
    offset = begin = choices.pick((0, 0, 7, _WINDOW * 2 - 3))
    records = []
    wide = choices.chance(20)
    for _ in range(choices.pick((6, 1, 3, 10, 14))):
        gap = choices.below(100)
        if gap >= 85:
            offset += _wide(choices) if wide else 1 + choices.below(3)
        key = b"abc"[(at := choices.below(3)) : at + 1]
        value = bytes(400) if choices.chance(10) else b"value"
        if spoilt_percent:
            value = choices.pick((SPOILT, SPOILT, DEADLY)) if choices.chance(spoilt_percent) else LEGIBLE
        records.append(written(tp, offset, key, value))
        offset += 1
    log = Log(tp, records, begin, offset + choices.pick((0, 0, 1, 2)))
    log.visible = len(records) - choices.below(len(records) + 1)
    return log


def _wide(choices: Choices) -> int:
    return choices.pick((1, _WINDOW, _WINDOW + 1, 2 * _WINDOW, 3 * _WINDOW)) + choices.below(8) - 4 + 4


def written(tp: TopicPartition, offset: int, key: bytes, value: bytes = b"value", sent_ms: int = 1000) -> Record:
    """One of the log's."""
    message = Message(
        topic=tp.topic,
        partition=tp.partition,
        offset=offset,
        key=key,
        value=value,
        timestamp=(1, sent_ms),
        leader_epoch=epoch_of(offset),
    )
    return Record(tp, offset, key, message)
