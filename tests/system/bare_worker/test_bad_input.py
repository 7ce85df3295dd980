"""What records may hold and handlers may do that nobody hopes for: nothing is lost, and it is said what happened."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kunicorn.commands.demo.mock_cluster import load_library
from kunicorn.handler.config import Batching, DeadLetterTarget
from kunicorn.ipc.messages import Failed, FailureKind
from tests.kafka import KafkaCluster
from tests.kafka.damage import damage
from tests.lengths import rest_long
from tests.system.bare_worker import traffic
from tests.system.bare_worker.rig import Rig, WorkerProcess
from tests.system.producing import consumed, headers_of

HANDLERS = '''
import multiprocessing
import os
import signal
import time

from tests.system.bare_worker.noting import note


def see(record):
    note(repr((record.offset, record.key, record.value, record.timestamp, record.headers)))


def see_all(batch):
    for record in batch:
        see(record)


def fork(record):
    """The child of a handler that forks ends at once; then the record is handled as any."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    see(record)


def close_everything(record):
    """Standard descriptors, the pipe to the supervisor, the client's sockets: all."""
    see(record)
    if record.value == b"close":
        os.closerange(0, 1 << 16)


def square(number):
    return number * number


def end_children(record):
    """As every program does with processes of its own."""
    started = multiprocessing.get_context("fork")
    child = started.Process(target=time.sleep, args=(300,))
    child.start()
    child.terminate()
    child.join()
    assert child.exitcode == -signal.SIGTERM, child.exitcode
    with started.Pool(2) as pool:
        assert pool.map(square, range(4)) == [0, 1, 4, 9]
    see(record)


def give_up(record):
    see(record)
    raise ValueError(record.headers)
'''


def produce(bootstrap: str, topic: str, *records: dict[str, object], **properties: object) -> None:
    """Append these to partition 0; delivered when it returns."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.max.bytes": 60_000_000, **properties}
    )
    for record in records:
        producer.produce(topic, partition=0, **record)  # type: ignore[arg-type]
    assert producer.flush(60) == 0


def worker_for(processes: Rig, kafka: KafkaCluster, topic: str, handler: str, **overrides: object) -> WorkerProcess:
    """A worker that is about to handle partition 0 from its beginning."""
    processes.module(HANDLERS)
    worker = processes.worker(handler, kafka.bootstrap, [topic], **overrides)
    worker.start(topic, {0: 0})
    return worker


def seen(directory: Path) -> list[tuple[object, ...]]:
    """What the handler has noted, record by record."""
    return [eval(line) for line in traffic.seen(directory)]


def test_every_codec_and_every_odd_record_arrives_as_it_was_sent(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    odd: list[dict[str, object]] = [
        {"value": None, "key": None},
        {"value": b"", "key": b""},
        {"value": b"\x00\x1b[31m\r\n\xff\xfe", "key": b"\x00"},
        {"value": b"v", "headers": [("\N{SNOWMAN}", b"\xff\x00"), ("twice", None), ("twice", b"")]},
    ]
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for codec in codecs:
        produce(kafka.bootstrap, topic, *odd, **{"compression.type": codec, "linger.ms": 50})
    worker = worker_for(processes, kafka, topic, "see")
    worker.consumed(1, len(codecs) * len(odd))
    expected = [(each.get("key"), each["value"], each.get("headers", [])) for each in odd] * len(codecs)
    got = seen(processes.directory)
    assert [(key, value, headers) for _, key, value, _, headers in got] == expected
    assert [offset for offset, *_ in got] == list(range(len(expected)))


WAYS: dict[str, tuple[str, dict[str, object]]] = {
    "one in hand": ("see", {}),
    "several in hand": ("see", {"ordering": "none", "concurrency": 2}),
    "waiting for a fuller batch": (
        "see_all",
        {"mode": "batch", "batch_max_records": 500, "batching": Batching(batch_max_ms=600_000, memory_bytes=1 << 20)},
    ),
}
CORE = [("one in hand", "none"), ("several in hand", "lz4"), ("waiting for a fuller batch", "none")]
"""Each way once: a client says the same of what it cannot unpack and of what has another checksum."""


@pytest.mark.parametrize(("way", "codec"), rest_long(itertools.product(WAYS, ("none", "lz4")), CORE))
def test_what_cannot_be_read_ends_the_grant_and_nothing_behind_it_is_handled(
    processes: Rig, kafka: KafkaCluster, topic: str, way: str, codec: str
) -> None:
    kafka.create_topic(topic, 1)
    for batch in range(3):
        records: list[dict[str, object]] = [
            {"value": b"%d of batch %d; " % (number, batch) * 5} for number in range(30)
        ]
        produce(kafka.bootstrap, topic, *records, **{"compression.type": codec, "linger.ms": 50})
    damage(kafka.broker(1), f"{topic}-0", begins=30)
    handler, more = WAYS[way]
    worker = worker_for(processes, kafka, topic, handler, **more)
    failed = worker.expect(Failed)
    assert (failed.kind, failed.offset) == (FailureKind.PARTITION, 30)
    assert "damaged" in failed.error
    assert "kunicorn seek" in failed.error
    worker.ping()
    assert {offset for offset, *_ in seen(processes.directory)} == set(range(30)), "what lies behind must wait"


NOT_UTF_8: list[tuple[bytes, bytes | None]] = [(b"a", b"1"), (b"\xff\xfe", b"2"), (b"b", None), (b"\xc3(", None)]
AS_READ = [("a", b"1"), ("\ufffd", b"2"), ("b", None), ("\ufffd", None)]


def produce_as_c_programs_do(bootstrap: str, topic: str, headers: list[tuple[bytes, bytes | None]]) -> None:
    """One record, whose headers' names need be no text; delivered when it returns."""
    library, error = load_library(), ctypes.create_string_buffer(512)
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(conf, b"bootstrap.servers", bootstrap.encode(), error, 512)
    client = ctypes.c_void_p(library.rd_kafka_new(0, conf, error, 512))
    # Of rd_kafka_vtype_t: 1 topic, 4 value, 9 header, 0 the end.
    told = [(9, name, value, ctypes.c_ssize_t(len(value or b""))) for name, value in headers]
    arguments = [1, topic.encode(), 4, b"v", ctypes.c_size_t(1), *itertools.chain(*told), 0]
    assert library.rd_kafka_producev(client, *arguments) == 0
    assert library.rd_kafka_flush(client, 30_000) == 0
    library.rd_kafka_destroy(client)


def test_a_header_whose_name_is_not_utf_8_is_read_and_dead_lettered_under_a_replaced_name(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    letters = kafka.create_topic(f"{topic}.dead-letters", 1)
    kafka.create_topic(topic, 1)
    produce_as_c_programs_do(kafka.bootstrap, topic, NOT_UTF_8)
    target = DeadLetterTarget(letters, "rig", {"bootstrap.servers": kafka.bootstrap})
    worker = worker_for(
        processes, kafka, topic, "give_up", dead_letters=target, on_failure="dead_letter", max_attempts=2
    )
    worker.consumed(1, 1)
    assert [headers for *_, headers in seen(processes.directory)] == [AS_READ] * 2
    (letter,) = consumed(kafka.bootstrap, letters, 1)
    assert headers_of(letter)[:4] == AS_READ


def test_a_handler_ends_processes_of_its_own_as_any_program_does(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    produce(kafka.bootstrap, topic, {"value": b"0"}, {"value": b"1"})
    worker = worker_for(processes, kafka, topic, "end_children")
    worker.consumed(1, 2)


def test_a_handler_that_forks_goes_on_with_its_partition(processes: Rig, kafka: KafkaCluster, topic: str) -> None:
    kafka.create_topic(topic, 1)
    produce(kafka.bootstrap, topic, {"value": b"0"}, {"value": b"1"}, {"value": b"2"})
    worker = worker_for(processes, kafka, topic, "fork")
    worker.consumed(1, 3)
    assert [value for _, _, value, _, _ in seen(processes.directory)] == [b"0", b"1", b"2"]


def test_a_handler_that_closes_all_descriptors_ends_its_worker_and_the_ledger_knows_how_far_it_came(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    produce(kafka.bootstrap, topic, {"value": b"a"}, {"value": b"close"}, {"value": b"b"})
    worker = worker_for(processes, kafka, topic, "close_everything")
    assert worker.exit_status() != 0, "without its pipe it is nobody's worker, and no orphan either"
    assert worker.slot(1).consumed.offset in (1, 2), "nothing is passed over"
