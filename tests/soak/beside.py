"""The groups of other clients in a leg: each meets its fault at the moment when ours meets it, and is waited for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from confluent_kafka import KafkaException

from tests.soak.consumed import Polled
from tests.soak.figures import Faulted
from tests.soak.peer_faults import THEIRS
from tests.soak.peers import PeerGroup

T = TypeVar("T")
_MILLISECOND = 1_000_000


class Beside:
    """Of one leg; of most legs, no group at all. What becomes of another client is told and breaks no promise of ours:
    a group that does not become whole is left out from then on."""

    def __init__(self, groups: Sequence[PeerGroup]) -> None:
        self._groups = list(groups)
        self._threads = ThreadPoolExecutor(max(1, len(groups)), "peer")
        self._faults: defaultdict[str, list[Faulted]] = defaultdict(list)

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, *_: object) -> None:
        for group in self._groups:
            group.close()
        self._threads.shutdown()

    @property
    def faults(self) -> Mapping[str, Sequence[Faulted]]:
        """What came of each, by client and version."""
        return dict(self._faults)

    def begin(self) -> None:
        """All members come, and the load; returns when each group is whole."""
        self._wait("start", self._submit(_begin))

    @contextmanager
    def hurt(self, name: str) -> Iterator[None]:
        """They meet the fault while the block runs, and are whole again when it is left, where the fault means
        something to them. A leg that is broken off in the block waits for nobody."""
        inflict = THEIRS.get(name)
        if inflict is None:
            yield
            return
        begun = self._submit(lambda group: _meet(group, inflict))
        yield
        self._wait(name, begun)
        for group, polled in self._wait(name, self._submit(_polled)).items():
            pauses = [round(wait / _MILLISECOND) for _, wait in sorted(polled.waits.items())]
            self._faults[group.title].append(Faulted(name, "–", polled.again, 0, pauses))

    def end(self) -> None:
        """Everything is consumed; members stop in order."""
        self._wait("stop", self._submit(_end))

    def _submit(self, work: Callable[[PeerGroup], T]) -> Mapping[PeerGroup, Future[T]]:
        return {group: self._threads.submit(work, group) for group in self._groups}

    def _wait(self, name: str, begun: Mapping[PeerGroup, Future[T]]) -> Mapping[PeerGroup, T]:
        """What each came to; one that did not is none of the groups any more."""
        done = {}
        for group, each in begun.items():
            try:
                done[group] = each.result()
            except (AssertionError, RuntimeError, KafkaException) as error:
                self._groups.remove(group)
                self._faults[group.title].append(Faulted(name, "–", 0, 0, [], [str(error) or repr(error)]))
                group.close()
        return done


def _begin(group: PeerGroup) -> None:
    group.begin()
    group.wait_whole()


def _meet(group: PeerGroup, inflict: Callable[[PeerGroup], None]) -> None:
    group.consumption.read()
    group.consumption.take()
    inflict(group)
    group.wait_whole()


def _polled(group: PeerGroup) -> Polled:
    """Ours may have become whole later: until then theirs may have paused, too."""
    group.wait_whole()
    return group.consumption.take()


def _end(group: PeerGroup) -> None:
    group.load.stop()
    group.wait_whole()
    for member in list(group.members):
        group.stop(member)
