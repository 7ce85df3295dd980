"""Records that became dead letters, on a real broker, and `kunicorn dlq` as on a command line."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Producer
from typer.testing import CliRunner, Result

from kunicorn.commands.cli import app
from kunicorn.handler.dead_letters import Cause, letter_of
from kunicorn.handler.record import Record
from tests.kafka import KafkaCluster
from tests.system.members import group_settings, toml
from tests.system.producing import consumed


class Desk:
    """A topic whose records became letters, and the command."""

    def __init__(self, kafka: KafkaCluster, topic: str, directory: Path) -> None:
        self.kafka, self.topic, self.letters = kafka, topic, f"{topic}.dead-letters"
        self._config = directory / "config.toml"
        settings = group_settings(kafka.bootstrap, [topic], topic)
        self._config.write_text(toml(settings))

    def fill(self, group: str | None = None) -> None:
        """Four records; those at 0, 1 and 3 become letters of the group (of the settings', if none is named), and a
        stranger's record lies between them.
        """
        self.kafka.create_topic(self.topic, 1)
        self.kafka.create_topic(self.letters, 1)
        sender = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for number in range(4):
            headers: list[tuple[str, str | bytes | None]] = [("trace", str(number))]
            sender.produce(self.topic, f"v{number}", "key", headers=headers, timestamp=1_700_000_000_000)
        assert sender.flush(60) == 0
        records = [Record.of(message) for message in consumed(self.kafka.bootstrap, self.topic, 4)]
        for number, error in ((0, "shop.NoStock"), (1, "WorkerDied"), (3, "shop.NoStock")):
            cause = Cause(error, "no\x1b[31m stock", "in pack", 3)
            letter = letter_of(records[number], group or self.topic, cause, 1_700_000_000_000 + number)
            assert letter.timestamp is not None
            headers = list(letter.headers)
            sender.produce(self.letters, letter.value, letter.key, headers=headers, timestamp=letter.timestamp)
            if number == 1:
                sender.produce(self.letters, "a stranger's")
        assert sender.flush(60) == 0

    def run(self, *arguments: str) -> Result:
        """The command as on a command line without a terminal."""
        return CliRunner().invoke(app, ["dlq", *arguments, "--config", str(self._config)])

    def said(self, *arguments: str) -> str:
        """What it printed; it has to succeed."""
        result = self.run(*arguments)
        if result.exception is not None:
            raise result.exception
        return result.stdout
