"""What a decoder of Fetch responses promises. Two keep it: `kunicorn_columns.Decoder`, which is compiled, and
`kunicorn.columns.reference.Decoder`, which is plain Python, slow, and the judge of the other. docs/columns.md has the
types of the columns.

Small: the promise stands apart from both, and the compiled one is loaded only where it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from kunicorn.errors import ConfigError
from kunicorn.handler.messages import Columnar

OLDEST_VERSION, NEWEST_VERSION = 12, 18
"""Versions of Fetch that are read (FetchResponse.json): from the first flexible one to that of Kafka 4.1."""
MOST_UNPACKED = 2**30 - 1
"""Bytes, the largest `max_unpacked`: a response's columns hold less than twice that, and their offsets have 32 bits."""


class Rows(Columnar, Protocol):
    """Arrow's PyCapsule interface: `pyarrow.record_batch(rows)` takes it without a copy. And a sequence of messages."""

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...
    def cut(self, first: int, rows: int, epoch: int) -> Rows:
        """So many rows from an index on, which were written in that leader epoch. Not copied: whoever has one of them
        keeps all that were decoded with it in memory."""


class Part(Protocol):
    """What a response says about one partition. Numbers that it does not say are -1."""

    @property
    def topic_id(self) -> bytes:
        """As placed, and so is `topic`."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def error(self) -> int:
        """Kafka's error code; 0 for none. With an error there are no rows."""

    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def log_start(self) -> int: ...
    @property
    def leader_id(self) -> int:
        """The leader now, where the broker that was asked is it no longer (KIP-951); and `leader_epoch`, its epoch."""

    @property
    def leader_epoch(self) -> int: ...
    @property
    def diverging_epoch(self) -> int:
        """The last epoch that the log and the consumer's past share (KIP-595); it ends at `diverging_end`."""

    @property
    def diverging_end(self) -> int: ...
    @property
    def preferred_replica(self) -> int:
        """The replica to fetch from instead (KIP-392)."""

    @property
    def first_row(self) -> int:
        """Index in the response's rows of this partition's first; it has `rows` of them."""

    @property
    def rows(self) -> int: ...
    @property
    def next_offset(self) -> int:
        """The offset to fetch next: behind the rows, and behind markers, aborted records and what compaction took."""

    @property
    def bytes(self) -> int:
        """Bytes of the rows' keys, values and headers (names and values)."""

    @property
    def last_epoch(self) -> int:
        """Leader epoch of the last batch that was read (KIP-320). All rows of the part were written in it."""

    @property
    def damage(self) -> str:
        """Why the batch at `damage_offset` cannot be read; empty where nothing is wrong. The rows are those before that
        batch; of itself there is none."""

    @property
    def damage_offset(self) -> int: ...
    @property
    def incomplete(self) -> bool:
        """Whether the first batch is cut short: ask for more bytes."""


class Response(Protocol):
    """One Fetch response, decoded."""

    @property
    def throttle_ms(self) -> int: ...
    @property
    def error(self) -> int:
        """Kafka's error code of the response as a whole, such as a session's; 0 for none."""

    @property
    def session_id(self) -> int: ...
    @property
    def partitions(self) -> Sequence[Part]:
        """Those of which there is news: rows, an error, damage, a moved position, a leader, changed watermarks."""

    @property
    def nodes(self) -> Sequence[tuple[int, str, int]]:
        """Brokers by number, host and port (KIP-951)."""

    @property
    def rows(self) -> Rows:
        """The rows of all partitions, in the order of `partitions`."""

    @property
    def more(self) -> int:
        """0 where all was decoded; else what `Decoder.decode` takes as `first` to go on in the same body."""


class Decoder(Protocol):
    """Makes columns of one consumer's Fetch responses, and knows the next offset of each partition.

    For one thread at a time. With `read_committed`, rows of aborted transactions are left out (KIP-98).
    """

    def __init__(
        self, *, read_committed: bool, max_unpacked: int, cut_at: int = MOST_UNPACKED, timestamp_types: bool = False
    ) -> None:
        """`max_unpacked`: bytes that the records of one batch may come to, between 1 and `MOST_UNPACKED`. `cut_at`: a
        response is cut where its batches have come to as much, or to `max_unpacked` (`Response.more`), and where a
        partition's rows go on in another leader epoch. Raises `ValueError` where one of them is not between 1 and
        `MOST_UNPACKED`. With `timestamp_types` rows have one column more, `timestamp_type`: 0 where the time is the
        producer's, 1 where it is the broker's."""

    def place(self, topic_id: bytes, partition: int, topic: str, offset: int) -> None:
        """Begin at the offset, or go on there.

        `topic_id`: what tells topics apart; where a cluster has no ids, the name in UTF-8. Responses up to version 12
        name their topics: then the id counts that was placed last under the name. A response that was asked for before
        this call is of another offset, so the caller must pass over the partition in it: `forget`, `decode`, `place`.
        """

    def forget(self, topic_id: bytes, partition: int) -> None:
        """Pass over the partition from now on; nothing where it is not placed."""

    @staticmethod
    def held() -> int:
        """Bytes of columns that are alive in this process, with what each answer takes beside its rows: whoever has
        rows, a `RecordBatch` of them or a slice of one column keeps the memory of all that were decoded with them. What
        decoding makes of values is not counted."""

    def decode(self, body: bytes | bytearray | memoryview, version: int, first: int = 0) -> Response:
        """Decode a response, from behind its frame's correlation id, and move the positions on.

        Nobody may write into `body` before this returns. The compiled one lets other threads run meanwhile. Raises
        `ValueError`, with nothing moved, where the frame cannot be read or the version is not one of `OLDEST_VERSION`
        to `NEWEST_VERSION`.
        """


def compiled() -> type[Decoder]:
    """The compiled decoder's class. Raises `ConfigError`, which says what to install, where it is missing."""
    try:
        import kunicorn_columns as found
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{error.name} is not installed: install the wheel kunicorn_columns-*.whl from where kunicorn came; in a "
            "checkout, install Rust (https://rustup.rs) and a C compiler, and run `make venv`"
        ) from error
    loaded: Any = found
    return cast("type[Decoder]", loaded.Decoder)
