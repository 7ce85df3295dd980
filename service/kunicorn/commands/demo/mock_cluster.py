"""librdkafka's mock cluster in a process of its own: brokers for the demo without Java, without an installation.

    python -m kunicorn.commands.demo.mock_cluster --brokers 1 --topic orders:8

prints `{"bootstrap_servers": "127.0.0.1:…"}` as one line and serves until its standard input is closed.
Of its own, because a member that the mock does not expect hits an assertion in C and ends the process.

What differs from Kafka: a partition keeps 5 MB, then drops its oldest records; a rebalance takes as long as the session
timeout less a second; commits are refused while a group is joining (so consumers use cooperative-sticky); there is no
CreateTopics, topics are named on the command line.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_int16, c_int32, c_size_t, c_void_p
from pathlib import Path

import confluent_kafka

from kunicorn.commands.child import die_with_parent, python_module, python_path, start_child

API_VERSION_CAPS = {11: 5, 14: 3, 13: 2, 12: 4}
"""Highest version by API key that the mock really speaks: it announces JoinGroup 6 and SyncGroup 4 but drops the
connection on them, and misreads LeaveGroup 3 and later."""

_RD_KAFKA_PRODUCER = 0
_ERROR_BYTES = 512


class MockUnavailable(Exception):
    """The mock cluster cannot be started here; the message says why and what to do instead."""


class MockCluster:
    """The mock cluster, inside this process. Raises `MockUnavailable`."""

    def __init__(self, brokers: int = 1) -> None:
        self._library = load_library()
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        conf = self._library.rd_kafka_conf_new()
        # It would complain that no brokers are configured; the instance only carries the mock's threads.
        self._library.rd_kafka_conf_set(conf, b"log_level", b"0", error, _ERROR_BYTES)
        self._client = self._library.rd_kafka_new(_RD_KAFKA_PRODUCER, conf, error, _ERROR_BYTES)
        if not self._client:
            raise MockUnavailable(f"librdkafka refused to start its mock cluster: {error.value.decode()}")
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, brokers)
        if not self._cluster:
            raise MockUnavailable(f"librdkafka could not make a mock cluster of {brokers} brokers")
        self._brokers = brokers
        for api_key, highest in API_VERSION_CAPS.items():
            self._check("set_apiversion", api_key, 0, highest)
        # The default waits three seconds for more members before every group's first rebalance.
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)

    @property
    def bootstrap(self) -> str:
        """`host:port,…` of every broker, on the loopback interface."""
        addresses: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return addresses.decode()

    def advertise(self, port: int) -> None:
        """Tell clients that every broker is at this port of the loopback interface. Whoever listens there forwards."""
        for broker in range(1, self._brokers + 1):
            self._check("broker_set_host_port", broker, b"127.0.0.1", port)

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic, replicated to every broker."""
        self._check("topic_create", name.encode(), partitions, self._brokers)

    def close(self) -> None:
        """Stop the brokers and drop everything they held."""
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)

    def _check(self, function: str, *arguments: object) -> None:
        """Call `rd_kafka_mock_<function>` on the cluster; its result is an error code."""
        code: int = getattr(self._library, f"rd_kafka_mock_{function}")(self._cluster, *arguments)
        if code != 0:
            text: bytes = self._library.rd_kafka_err2str(code)
            raise MockUnavailable(f"the mock cluster refused {function}{arguments}: {text.decode()}")


_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "rd_kafka_conf_new": (c_void_p, ()),
    "rd_kafka_conf_set": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    "rd_kafka_new": (c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    "rd_kafka_destroy": (None, (c_void_p,)),
    "rd_kafka_err2str": (c_char_p, (c_int,)),
    "rd_kafka_mock_cluster_new": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_mock_cluster_destroy": (None, (c_void_p,)),
    "rd_kafka_mock_cluster_bootstraps": (c_char_p, (c_void_p,)),
    "rd_kafka_mock_topic_create": (c_int, (c_void_p, c_char_p, c_int, c_int)),
    "rd_kafka_mock_broker_set_host_port": (c_int, (c_void_p, c_int32, c_char_p, c_int)),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, (c_void_p, c_int32)),
    "rd_kafka_mock_set_apiversion": (c_int, (c_void_p, c_int16, c_int16, c_int16)),
}
"""Result and arguments of every function used, from rdkafka.h and rdkafka_mock.h."""


_BUNDLED = ("confluent_kafka.libs/librdkafka-*.so*", "confluent_kafka/.dylibs/librdkafka*.dylib")
"""Where wheels for Linux and for macOS have it."""


def load_library() -> ctypes.CDLL:
    """The librdkafka inside confluent-kafka's wheel, its functions typed. Raises `MockUnavailable`."""
    package = Path(confluent_kafka.__file__).parent
    bundled = [found for place in _BUNDLED for found in sorted(package.parent.glob(place))]
    if not bundled:
        raise MockUnavailable(
            f"{package} holds no bundled librdkafka (it was not installed from a wheel), so there is no mock cluster; "
            "name a real cluster with --bootstrap instead"
        )
    library = ctypes.CDLL(str(bundled[0]))
    for name, (result, arguments) in _SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise MockUnavailable(f"{bundled[0]} has no {name}; name a real cluster with --bootstrap") from None
        function.restype, function.argtypes = result, arguments
    return library


@contextmanager
def mock_cluster_process(
    topics: Sequence[tuple[str, int]], brokers: int = 1, advertised_port: int | None = None
) -> Iterator[str]:
    """Run the mock cluster as a child for as long as the block lasts; yields its bootstrap address.

    With `advertised_port` clients are sent there instead; whoever calls this forwards them to the address. Raises
    `MockUnavailable` where the mock does not come up.
    """
    arguments = ["--brokers", str(brokers)]
    if advertised_port is not None:
        arguments += ["--advertised-port", str(advertised_port)]
    for name, partitions in topics:
        arguments += ["--topic", f"{name}:{partitions}"]
    process = start_child(
        python_module("kunicorn.commands.demo.mock_cluster", *arguments), env=python_path(), pipes=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise MockUnavailable(f"the mock cluster's process exited {process.wait()} before it served anybody")
        yield json.loads(line)["bootstrap_servers"]
    finally:
        process.stdin.close()
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End the process, in order if that takes no longer than a moment: with clients connected librdkafka may take
    longer.
    """
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _topic(text: str) -> tuple[str, int]:
    """Topic and partitions of `NAME:PARTITIONS` on the command line."""
    name, _, partitions = text.rpartition(":")
    if not name or not partitions.isdecimal() or int(partitions) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:PARTITIONS, for example orders:8")
    return name, int(partitions)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until standard input is closed: the one sign of the parent's end that needs no signal."""
    parser = argparse.ArgumentParser(prog="python -m kunicorn.commands.demo.mock_cluster", description=__doc__)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--topic", type=_topic, action="append", default=[], metavar="NAME:PARTITIONS")
    parser.add_argument("--advertised-port", type=int)
    options = parser.parse_args(arguments)
    die_with_parent()
    try:
        cluster = MockCluster(options.brokers)
        if options.advertised_port is not None:
            cluster.advertise(options.advertised_port)
        for name, partitions in options.topic:
            cluster.create_topic(name, partitions)
    except MockUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"bootstrap_servers": cluster.bootstrap}), flush=True)
    while sys.stdin.buffer.read(4096):
        pass
    cluster.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
