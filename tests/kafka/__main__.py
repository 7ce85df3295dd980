"""`python -m tests.kafka`: a broker to play with, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from tests.kafka.artifacts import KafkaUnavailable
from tests.kafka.cluster import VERSION, KafkaCluster


def main() -> int:
    """Start the cluster, print its bootstrap address on standard output, stop it on SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m tests.kafka", description=__doc__)
    parser.add_argument("--brokers", type=int, default=1, choices=(1, 3))
    parser.add_argument("--version", default=VERSION, help="version of Apache Kafka (default: %(default)s)")
    parser.add_argument("--workdir", type=Path, help="keep data and logs here (default: removed at the end)")
    parser.add_argument("--topic", action="append", default=[], metavar="NAME:PARTITIONS", help="create this topic")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a line of server.properties")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    overrides = dict(line.split("=", 1) for line in arguments.set)
    try:
        with KafkaCluster(arguments.brokers, arguments.workdir, overrides, arguments.version) as kafka:
            for name, _, partitions in (topic.partition(":") for topic in arguments.topic):
                kafka.create_topic(name, int(partitions or 1))
            print(kafka.bootstrap, flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except KafkaUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
