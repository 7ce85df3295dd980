"""Brokers that pods can reach: on an address of this machine that the pods' network knows."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    NewTopic,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kunicorn.commands.demo.ports import free_ports
from tests.kafka import KafkaCluster
from tests.kafka.properties import Node
from tests.kafka.secured import SecuredCluster
from tests.waiting import wait_until


class Brokers(KafkaCluster):
    """One broker with a second listener for pods, on `host`. Scenarios may stop it and start it."""

    def __init__(self, host: str) -> None:
        super().__init__(1)
        (port,) = free_ports(1)
        self.host = host
        self.for_pods = f"{host}:{port}"
        self._overrides |= {
            "listeners": lambda node: f"{_own(node)},{_controller(node)},PODS://{self.for_pods}",
            "advertised.listeners": lambda node: f"{_own(node)},PODS://{self.for_pods}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PODS:PLAINTEXT",
        }


def _own(node: Node) -> str:
    return f"PLAINTEXT://127.0.0.1:{node.port}"


def _controller(node: Node) -> str:
    return f"CONTROLLER://127.0.0.1:{node.controller_port}"


class SecuredBrokers(SecuredCluster):
    """One broker with secured listeners for pods, on `host`; this machine needs no login."""

    def __init__(self, workdir: Path, host: str) -> None:
        super().__init__(workdir, host)
        self.host = host
        self.for_pods = self.server("SECURE", host)

    def set_password(self, user: str, password: str) -> None:
        """From now on this one, for SCRAM-SHA-512; who is logged in stays so."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        secret = UserScramCredentialUpsertion(user, info, password.encode())
        self.admin().alter_user_scram_credentials([secret])[user].result(10)

    def allow_group(self, user: str, topic: str) -> None:
        """What a member of the group, both of that name, needs."""
        self.allow(
            user,
            *((ResourceType.TOPIC, topic, right) for right in (AclOperation.READ, AclOperation.DESCRIBE)),
            (ResourceType.GROUP, topic, AclOperation.READ),
        )


class GivenBrokers:
    """Brokers that are there already, at addresses that this machine and the pods know both."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = self.for_pods = bootstrap

    def create_topic(self, name: str, partitions: int) -> None:
        """Create it, and wait until it is there."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        topic = NewTopic(name, num_partitions=partitions)
        admin.create_topics([topic])[name].result(30)
        wait_until(lambda: len(admin.list_topics(name, timeout=60).topics[name].partitions) == partitions, name, 30)
