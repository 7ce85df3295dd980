"""One broker process: started, stopped, killed and frozen by its own pid."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence

from kunicorn.commands.child import start_child
from tests.kafka.artifacts import Distribution
from tests.kafka.properties import Node

QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
SMALL = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m", *QUIET)
"""Start quickly and stay small; a broker with JVM defaults takes twice as long to come up."""
AS_SHIPPED = (
    *("-server", "-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", *QUIET),
)
"""How Kafka's own scripts start a broker (`kafka-server-start.sh`, `kafka-run-class.sh`). It takes a thousand
transactions to get warm, and less of the processor than a small one from then on."""
LOG_FLAGS = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    # What the coordinator makes of every member: the first thing to read when a test of ours fails.
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.coordinator.group=info",
)


class Broker:
    """One server of a cluster. Methods block until the operating system has done what they say."""

    def __init__(self, node: Node, kafka: Distribution, jvm: Sequence[str] = SMALL) -> None:
        self.node = node
        self.id = node.id
        self.address = f"127.0.0.1:{node.port}"
        self.log = node.directory / "log.txt"
        self._kafka = kafka
        self._jvm = jvm
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The JVM's pid; raises where the broker was never started."""
        if self._process is None:
            raise RuntimeError(f"broker {self.id} was never started")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """The process exists; a frozen one counts."""
        return self._process is not None and self._process.poll() is None

    def start(self, *jvm_flags: str) -> None:
        """Start (or start again) on the same ports and data; does not wait until it answers."""
        if self.alive:
            raise RuntimeError(f"broker {self.id} is running already")
        properties = self.node.directory / "server.properties"
        command = java_command(self._kafka, "kafka.Kafka", [str(properties)], [*LOG_FLAGS, *jvm_flags], self._jvm)
        self._process = start_child(command, env={"CLASSPATH": self._kafka.classpath}, log=self.log)

    def upgrade(self, kafka: Distribution) -> None:
        """Be of this version from the next start on, with the data and settings that there are."""
        self._kafka = kafka

    @property
    def version(self) -> str:
        """Of Kafka, at its next start if not now."""
        return self._kafka.version

    def stop(self, timeout: float = 120.0) -> int:
        """SIGTERM: the broker hands its leaderships over and leaves. Returns its exit status."""
        return self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """SIGKILL: nothing is handed over; leaders move when the controller's session with it runs out."""
        self._end(signal.SIGKILL, 60.0)

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def log_tail(self, lines: int = 40) -> str:
        """The end of what the broker logged."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:]) or "(the broker logged nothing)"

    def _end(self, number: signal.Signals, timeout: float) -> int:
        if self._process is None:
            raise RuntimeError(f"broker {self.id} was never started")
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self._process.wait(timeout)


def java_command(
    kafka: Distribution, main: str, arguments: Sequence[str], flags: Sequence[str] = (), jvm: Sequence[str] = SMALL
) -> list[str]:
    """The command line of one of Kafka's classes; the class path travels in the environment's CLASSPATH."""
    archive = [f"-XX:SharedArchiveFile={kafka.archive}"] if kafka.archive.exists() else []
    return [kafka.java.command, *jvm, *archive, *flags, main, *arguments]
