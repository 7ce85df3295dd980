"""Fetch responses of Kafka to Arrow columns, compiled. What each name promises: `kunicorn.columns.decoding`."""

from typing import final

__version__: str

class MalformedResponse(ValueError): ...

@final
class Part:
    topic_id: bytes
    topic: str
    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start: int
    leader_id: int
    leader_epoch: int
    diverging_epoch: int
    diverging_end: int
    preferred_replica: int
    first_row: int
    rows: int
    next_offset: int
    bytes: int
    last_epoch: int
    damage: str
    damage_offset: int
    incomplete: bool

@final
class Rows:
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...
    def __len__(self) -> int: ...

@final
class Response:
    throttle_ms: int
    error: int
    session_id: int
    partitions: list[Part]
    nodes: list[tuple[int, str, int]]
    rows: Rows
    more: int

@final
class Decoder:
    def __new__(cls, *, read_committed: bool, max_unpacked: int, timestamp_types: bool = False) -> Decoder: ...
    def place(self, topic_id: bytes, partition: int, topic: str, offset: int) -> None: ...
    def forget(self, topic_id: bytes, partition: int) -> None: ...
    def decode(self, body: bytes | bytearray | memoryview, version: int, first: int = 0) -> Response: ...
