"""Consumers that are not ours in our group, each used as its documentation tells careful users to."""

from tests.system.group.foreign.client import Foreign
from tests.system.group.foreign.java import JavaConsumer
from tests.system.group.foreign.librdkafka import LibrdkafkaConsumer
from tests.system.group.foreign.pure_python import AiokafkaConsumer

__all__ = ["AiokafkaConsumer", "Foreign", "JavaConsumer", "LibrdkafkaConsumer"]
