"""Bitmaps of offsets behind a partition's ledger slot: those done ahead of the lowest unfinished one, and those in
hand.

Each is a ring of bits in shared memory, written by a worker with several records in hand and read by the supervisor. As
text the done offsets travel over pipes and in the metadata of commits (`written`, `read`).

1. The ring has twice as many bits as the window: when the window moves on, the offset is stored first and the bits
   behind it are cleared afterwards. Whoever reads in between (after SIGKILL) takes none of those for a later offset, as
   long as the window moves by less than its size. Before a larger move (compaction leaves gaps) the ring is cleared:
   nothing that it marks lies behind the move.
2. One writer, one byte a store: a reader never sees half of a change.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterator
from typing import NamedTuple, Self

from kunicorn.positions import NO_EPOCH

WINDOW = 4096
"""Offsets beyond the lowest unfinished one of a partition within which records may be started."""
_RING = 2 * WINDOW
RING_BYTES = _RING // 8

_FORM = "kunicorn:done:2:"
"""Beginning of the text form; that of another version is not understood, which costs repetitions and no record."""
_FORM_1 = "kunicorn:done:1:"
"""That of members of 0.1.0, which one of today may have beside it in its group: the bits alone, for whatever offset
they are found beside. To be dropped behind 0.2.0."""
_PARTITIONS = "kunicorn:partitions:"
"""How a commit's metadata begins that says how many partitions the topic had when the group began to consume it. What
is done, if anything, follows behind a space."""
_EPOCH = "kunicorn:epoch:1:"
"""Beginning of the word that names the leader epoch of a committed offset: see `epoch_word`."""
_TOPIC = "kunicorn:topic:1:"
"""Beginning of the word that names the topic of a committed offset: see `topic_word`."""
_LAST_EPOCH = 2**31 - 1
"""int32 in Kafka's messages, as the number of partitions is."""


class Ahead(NamedTuple):
    """Offsets of the window that begins with `first`, as bits: bit 0 is `first`.

    The supervisor looks at those of every partition whenever something may be committed. As sets, a thousand partitions
    with full windows take two seconds, in which no heartbeat goes out.
    """

    first: int
    bits: int

    @classmethod
    def of(cls, first: int, offsets: Collection[int]) -> Self:
        """Those of the offsets that the window has."""
        bits = 0
        for offset in offsets:
            if 0 <= offset - first < WINDOW:
                bits |= 1 << (offset - first)
        return cls(first, bits)

    def beginning(self, first: int) -> Ahead:
        """Those in the window that begins with `first`."""
        if abs(moved := first - self.first) >= WINDOW or not self.bits:
            return Ahead(first, 0)
        return Ahead(first, (self.bits >> moved if moved >= 0 else self.bits << -moved) & _WHOLE)

    def with_those(self, others: Ahead) -> Ahead:
        """These, and those of the others that this window has."""
        return Ahead(self.first, self.bits | others.beginning(self.first).bits)

    def offsets(self) -> frozenset[int]:
        return frozenset(self.first + bit for bit in _bits(self.bits))

    def text(self, topic_id: str = "") -> str:
        """What a commit says of them: relative to `first`, which it names, as what copies a group's metadata may move
        its offsets; empty where there are none. `topic_id`: of which topic, where that is known.

        At most 743 characters, 774 with the number of partitions: well below the 4096 that brokers take as a commit's
        metadata (offset.metadata.max.bytes).
        """
        if not self.bits:
            return ""
        data = base64.b64encode(self.bits.to_bytes((self.bits.bit_length() + 7) // 8, "little")).decode()
        return f"{_FORM}{self.first}:{topic_id}:{data}"


_WHOLE = (1 << WINDOW) - 1
NONE_AHEAD = Ahead(0, 0)


class Marks:
    """One ring of bits of a slot. Holds no view of its own into the memory: views would keep the ledger from being
    closed.
    """

    __slots__ = ("_at", "_memory")

    def __init__(self, memory: memoryview, at: int) -> None:
        """`memory`: the ledger's bytes; the ring begins at `at`."""
        self._memory = memory
        self._at = at

    def mark(self, offset: int) -> None:
        bit = offset % _RING
        self._memory[self._at + (bit >> 3)] |= 1 << (bit & 7)

    def unmark(self, offset: int) -> None:
        bit = offset % _RING
        self._memory[self._at + (bit >> 3)] &= ~(1 << (bit & 7))

    def clear(self) -> None:
        """Clear every bit. Caller: a worker that marks; elsewhere the page is never touched, so that it takes no
        memory.
        """
        self._memory[self._at : self._at + RING_BYTES] = bytes(RING_BYTES)

    def ahead(self, first: int) -> Ahead:
        """What is marked of the window that begins with `first`."""
        ring = int.from_bytes(self._memory[self._at : self._at + RING_BYTES], "little")
        start = first % _RING
        return Ahead(first, (ring >> start | ring << (_RING - start)) & _WHOLE)

    def from_offset(self, first: int) -> frozenset[int]:
        """Marked offsets of the window that begins with `first`."""
        return self.ahead(first).offsets()


def written(first: int, offsets: Collection[int], topic_id: str = "") -> str:
    """The offsets as `Ahead.text`, without those outside the window that begins with `first`."""
    return Ahead.of(first, offsets).text(topic_id)


def read(first: int, text: str) -> frozenset[int]:
    """Offsets in a text of `written`; see `read_ahead`."""
    return read_ahead(first, text).offsets()


def read_ahead(first: int, text: str) -> Ahead:
    """What a text of `Ahead.text` says, also behind a number of partitions or in front of who committed it; nothing
    beside another offset than it names. Other texts, which other clients may have committed with their offsets, say
    nothing. Caller: of what processes of one service tell each other; of commits see `read_committed`.
    """
    told = _told(text)
    if told is None or told.first not in (None, str(first)):
        return Ahead(first, 0)
    try:
        data = base64.b64decode(told.bits, validate=True)
    except (binascii.Error, ValueError):
        return Ahead(first, 0)
    if len(data) > WINDOW // 8:
        return Ahead(first, 0)
    return Ahead(first, int.from_bytes(data, "little"))


def read_committed(first: int, text: str, topic_id: str) -> Ahead:
    """What the metadata says that was found beside the committed offset `first` of that topic, as `read_ahead`; nothing
    where it names another topic: MirrorMaker copies it to topics whose records have other offsets.

    `topic_id`: empty where it is not known.
    """
    return read_ahead(first, text) if topic_in(text) in ("", topic_id) else Ahead(first, 0)


def topic_in(text: str) -> str:
    """Id of the topic that a text of `Ahead.text` names; empty where it names none."""
    told = _told(text)
    return "" if told is None else told.topic_id


class _Told(NamedTuple):
    first: str | None
    topic_id: str
    bits: str


def _told(text: str) -> _Told | None:
    for word in _split(text):
        if parts := _parts(_FORM, word):
            return _Told(*parts)
        if word.startswith(_FORM_1):
            return _Told(None, "", word.removeprefix(_FORM_1))
    return None


def _words(form: str, text: str) -> Iterator[tuple[str, str, str]]:
    """What the words of that form say."""
    return (parts for word in _split(text) if (parts := _parts(form, word)))


def _split(text: str) -> list[str]:
    # confluent-kafka commits a text with the NUL that ends it in C (`py_to_c_parts` counts it into `metadata_size`).
    return text.rstrip("\0").split(" ")


def _parts(form: str, word: str) -> tuple[str, str, str] | None:
    if not word.startswith(form) or len(parts := word.removeprefix(form).split(":")) != 3:
        return None
    first, second, third = parts
    return first, second, third


def with_partitions(partitions: int | None, done: str) -> str:
    """Metadata of a commit: the done offsets, and the topic's number of partitions when the group began to consume it.

    `partitions`: None where that is not known. The number takes 31 characters at most.
    """
    return done if partitions is None else f"{_PARTITIONS}{partitions} {done}".rstrip()


def partitions(text: str) -> int | None:
    """Number of partitions in a commit's metadata; None where it has none."""
    number = text.partition(" ")[0].removeprefix(_PARTITIONS).rstrip("\0")
    return int(number) if text.startswith(_PARTITIONS) and _is_number(number) else None


def epoch_word(first: int, topic_id: str, epoch: int) -> str:
    """Word of a commit's metadata, for a version of OffsetCommit that has no field for it: that leader epoch had the
    records before the offset `first` of that topic. Empty where `epoch` is `NO_EPOCH`; 71 characters at most.
    `topic_id`: empty where it is not known.

    It names the offset and the topic, as `Ahead.text` does: beside others' records an offset would pass for truncated.
    """
    return "" if epoch == NO_EPOCH else f"{_EPOCH}{first}:{topic_id}:{epoch}"


def epoch(first: int, text: str, topic_id: str) -> int:
    """Leader epoch in the metadata that was found beside the committed offset `first` of that topic, by `epoch_word`;
    `NO_EPOCH` where there is none, or one of another offset or topic. `topic_id`: empty where it is not known.
    """
    for at, topic, number in _words(_EPOCH, text):
        if at == str(first) and topic in ("", topic_id) and _is_number(number) and int(number) <= _LAST_EPOCH:
            return int(number)
    return NO_EPOCH


def topic_word(first: int, cluster_id: str, topic_id: str) -> str:
    """Word of a commit's metadata, for a request that names topics by their names alone (TxnOffsetCommit): the offset
    `first` is of that topic. A commit that comes late would else count for a topic that has the name since. Empty where
    an id is not known; at most 82 characters.
    """
    return f"{_TOPIC}{first}:{cluster_id}:{topic_id}" if cluster_id and topic_id else ""


def is_of_another_topic(first: int, text: str, cluster_id: str, topic_id: str) -> bool:
    """Whether the metadata that was found beside the committed offset `first` says, by `topic_word`, that this is of
    another topic than the one that has the name now. Of another cluster, or beside another offset, it says nothing:
    MirrorMaker copies it to topics with other ids, whose offsets are right. Ids are empty where they are not known.
    """
    at, cluster, topic = next(_words(_TOPIC, text), ("", "", ""))
    return at == str(first) and cluster == cluster_id and "" not in (topic, topic_id) and topic != topic_id


def _is_number(text: str) -> bool:
    """Whether it is one of those that a request can have: of any length would be a second of work."""
    return text.isascii() and text.isdigit() and len(text) <= len(str(_LAST_EPOCH))


def _bits(number: int) -> Iterator[int]:
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
