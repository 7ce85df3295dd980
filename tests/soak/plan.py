"""What the legs of a seed are: which group meets which faults. Pure: the same seed has the same legs everywhere.

Each leg takes, of all groups that the fault met least often means something to, one whose pairs of values were met
least; and of the faults that mean something to it, those that its protocol has met least. So every pair comes up soon,
and no fault is forgotten, however few groups it means something to. Some legs last an hour, and have the same processes
from their beginning to their end: what a process takes more and more of is seen there.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from tests.chaos.faults import Kind
from tests.chaos.group import FETCHERS, PROTOCOLS, SESSION
from tests.kafka.proxied import Security
from tests.soak.faults import FAULTS, FIRST
from tests.soak.upgrades import THEN

CONSUMER_SESSION = 45.0
"""Seconds: as Kafka ships, brokers choose it for members of the consumer protocol, and let nobody choose less."""
FAULT_SECONDS = 400.0
"""Of a leg, for its faults and the quiet time behind each; with its start and end a leg takes five to ten minutes."""
LASTING_SECONDS = 2_400.0
"""Likewise, of a leg that takes an hour: where it is through sooner, it lives on under load."""
QUIET_SECONDS = 10.0
"""Load without a fault, behind each."""
_TRIED = 60
"""Groups that are compared for a leg."""

WAYS = ("record", "batch", "arrow", "threads", "tasks", "keys")
DELIVERIES = ("none", "at least once", "transactions", "database")
SECURITIES: Sequence[Security] = ("PLAINTEXT", "SSL", "SASL_SSL")
_IN_ORDER = ("record", "batch", "arrow")
"""Ways with which an offset beside the effects says everything (docs/handlers.md)."""
PEERS_EVERY, PEERS_AT = 10, 3
"""Each tenth leg, the first of them number 3, has groups of other clients beside ours."""
LASTING_EVERY, LASTING_AT = 15, 0
"""Each fifteenth leg, the first of them number 0, lasts an hour."""
LASTING = frozenset(
    {
        *("freeze-worker", "kill-template", "slow-network", "reset-connections", "cut-briefly", "cut", "cut-to"),
        *("cut-from", "kill-broker", "kill-coordinator", "freeze-broker", "restart-brokers", "fill-disk"),
        *("quota", "move-leaders", "take-right"),
    }
)
"""Their faults, which end no process of a member and may come again and again."""


@dataclass(frozen=True)
class Shape:
    """One kind of group."""

    protocol: str
    static: bool
    way: str
    delivery: str
    fetcher: str
    security: Security

    @property
    def session(self) -> float:
        """Seconds until a silent member is taken for dead."""
        return CONSUMER_SESSION if self.protocol == "consumer" else SESSION

    @property
    def exists(self) -> bool:
        """Whether the service has such a group."""
        return self.delivery != "database" or self.way in _IN_ORDER

    def meets(self, fault: str) -> bool:
        """Whether that fault means something to it."""
        kind = FAULTS[fault].kind
        if kind in (Kind.STATIC, Kind.DYNAMIC):
            return self.static == (kind is Kind.STATIC)
        means = {
            Kind.LOGGED_IN: self.security == "SASL_SSL",
            Kind.CLASSIC: self.protocol != "consumer",
            Kind.KEYED: self.delivery != "database" and not self.is_lethal,
            Kind.EARLIER: self.was_there_then,
        }
        return means.get(kind, True) and (fault != "poison" or self.is_lethal)

    @property
    def is_lethal(self) -> bool:
        """Whether its handler dies of poison: where a record's death can be told from that of those beside it."""
        return (self.way, self.delivery) == ("record", "none")

    @property
    def was_there_then(self) -> bool:
        """Whether members of the earlier commit have what it takes: its handlers, and the fetcher that it knew."""
        return self.way in THEN and self.delivery == "none" and self.fetcher == FETCHERS[0]

    def pairs(self) -> Iterator[tuple[tuple[str, object], ...]]:
        """Each two of its values."""
        return itertools.combinations(vars(self).items(), 2)

    def __str__(self) -> str:
        members = "static" if self.static else "dynamic"
        return (
            f"{self.protocol}, {members} members, {self.way}, delivery {self.delivery}, {self.fetcher} fetcher, "
            f"{self.security}"
        )


@dataclass(frozen=True)
class Leg:
    """One group from its first member to its verdict."""

    seed: int
    number: int
    shape: Shape
    faults: tuple[str, ...]

    @property
    def has_peers(self) -> bool:
        """Whether groups of other clients meet the same faults beside it."""
        return self.number % PEERS_EVERY == PEERS_AT

    @property
    def lasts(self) -> bool:
        """Whether it takes an hour."""
        return lasts(self.number)

    def __str__(self) -> str:
        return f"seed {self.seed}, leg {self.number}: {self.shape}; {', '.join(self.faults)}"


def lasts(number: int) -> bool:
    """Whether the leg of that number takes an hour, of any seed."""
    return number % LASTING_EVERY == LASTING_AT


def takes(number: int) -> float:
    """About so many seconds, with its start and its end, on a machine that has other things to do."""
    return 60 + 1.5 * (LASTING_SECONDS if lasts(number) else FAULT_SECONDS)


@cache
def shapes() -> tuple[Shape, ...]:
    """All kinds of groups that the service has."""
    values = (PROTOCOLS, (False, True), WAYS, DELIVERIES, FETCHERS, SECURITIES)
    every = (Shape(*each) for each in itertools.product(*values))
    return tuple(shape for shape in every if shape.exists)


@cache
def meanings() -> frozenset[tuple[str, str]]:
    """Protocol and fault, wherever the fault means something to a group of the protocol."""
    return frozenset((shape.protocol, name) for shape in shapes() for name in FAULTS if shape.meets(name))


def seconds(fault: str, shape: Shape) -> float:
    """About how long a fault takes until the group is whole again."""
    return FAULTS[fault].seconds + FAULTS[fault].sessions * shape.session


def legs(seed: int, only: Sequence[str] = ()) -> Iterator[Leg]:
    """The legs of a seed, without end; `only` these faults, of the same groups."""
    # Dice of their own: another fault in the table leaves the choice among groups as it is.
    dice, shaping = random.Random(seed), random.Random(seed + 1)
    met: Counter[tuple[tuple[str, object], ...]] = Counter()
    by_protocol: dict[str, Counter[str]] = {protocol: Counter() for protocol in PROTOCOLS}
    for number in itertools.count():
        among = _in_need(by_protocol, LASTING if lasts(number) else FAULTS, shaping)
        shape = max(
            shaping.sample(among, min(len(among), _TRIED)),
            key=lambda each: sum(2.0 ** -met[pair] for pair in each.pairs()),
        )
        met.update(shape.pairs())
        choose = _lasting_faults if lasts(number) else _faults
        faults = choose(shape, by_protocol[shape.protocol], dice)
        by_protocol[shape.protocol].update(faults)
        yield Leg(seed, number, shape, tuple(name for name in only if shape.meets(name)) if only else faults)


def _in_need(met: Mapping[str, Mapping[str, int]], among: Collection[str], dice: random.Random) -> Sequence[Shape]:
    """Groups to which one fault of those means something which have met their protocol least often."""
    places = sorted(each for each in meanings() if each[1] in among)
    dice.shuffle(places)
    protocol, seldom = min(places, key=lambda each: met[each[0]][each[1]])
    return tuple(each for each in shapes() if each.protocol == protocol and each.meets(seldom))


def leg(seed: int, number: int, only: Sequence[str] = ()) -> Leg:
    """One of them."""
    return next(itertools.islice(legs(seed, only), number, None))


def _faults(shape: Shape, met: Mapping[str, int], dice: random.Random) -> tuple[str, ...]:
    """Those that were met least, in any order, as many as there is time for; at least one."""
    candidates = [name for name in FAULTS if shape.meets(name)]
    dice.shuffle(candidates)
    candidates.sort(key=lambda name: met[name])
    chosen: list[str] = []
    left = FAULT_SECONDS
    for name in candidates:
        takes = seconds(name, shape) + QUIET_SECONDS
        if takes <= left or not chosen:
            chosen.append(name)
            left -= takes
    dice.shuffle(chosen)
    return tuple(sorted(chosen, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST)))


def _lasting_faults(shape: Shape, met: Mapping[str, int], dice: random.Random) -> tuple[str, ...]:
    """All that a leg of an hour may have, those first that were met least; and again, in another order."""
    candidates = sorted(name for name in LASTING if shape.meets(name))
    chosen: list[str] = []
    left = LASTING_SECONDS
    while True:
        dice.shuffle(candidates)
        for name in candidates if chosen else sorted(candidates, key=lambda name: met[name]):
            left -= seconds(name, shape) + QUIET_SECONDS
            if left < 0:
                return tuple(chosen)
            chosen.append(name)
