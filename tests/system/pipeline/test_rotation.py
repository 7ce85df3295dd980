"""A password that is rotated in its file while a job runs: tasks and the driver log in with the new one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kunicorn.clients.session import cluster_session
from kunicorn.pipeline.group_offsets import commit
from kunicorn.pipeline.tasks.executor_process import settings_file
from kunicorn.positions import OffsetRange, TopicPartition
from kunicorn.settings import load
from tests.kafka.secured import PASSWORDS, SecuredCluster
from tests.system.members import group_settings, merged, toml
from tests.system.producing import produce
from tests.waiting import wait_until

pytestmark = pytest.mark.long


def test_clients_that_live_on_use_the_password_of_now(topic: str, tmp_path: Path) -> None:
    secret, config = tmp_path / "password", tmp_path / "config.toml"
    secret.write_text(PASSWORDS["carol"])
    with SecuredCluster(tmp_path) as cluster:
        cluster.create_topic(topic, 1)
        rights = [(kind, topic, AclOperation.READ) for kind in (ResourceType.TOPIC, ResourceType.GROUP)]
        cluster.allow("carol", *rights)
        kafka = {
            "security_protocol": "SASL_SSL",
            "ssl_ca_location": str(cluster.certificates.ca),
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": "carol",
            "sasl_password_file": str(secret),
        }
        own = group_settings(cluster.server("BRIEF"), [topic], topic, "x:y")
        config.write_text(toml(merged(own, {"kafka": kafka})))
        settings = load(config, {})
        file, place = settings_file(config, settings), TopicPartition(topic, 0)
        for count in (1, 2):
            produce(cluster.bootstrap, topic, 1)
            if count == 2:
                rotate(cluster, secret)
            whole = OffsetRange(topic, 0, count - 1, count)
            for reader in (file.reader(), file.records()):
                assert sum(map(len, reader.read(whole))) == 1
            with cluster_session(settings) as session:
                assert session.edges([place])[place].end == count
                commit(session, {place: count}, "spark:x")
                assert session.committed([place])[place].offset == count


def rotate(cluster: SecuredCluster, secret: Path) -> None:
    """Another password, and no session left from before: clients have to log in anew (KIP-368). That the last one has
    logged in, which knows the former password alone, is refused when its session is over."""
    refused: list[KafkaError] = []
    properties: dict[str, Any] = {
        "bootstrap.servers": cluster.server("BRIEF"),
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(cluster.certificates.ca),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "carol",
        "sasl.password": PASSWORDS["carol"],
        "error_cb": refused.append,
        "log_level": 0,
    }
    last = AdminClient(properties)
    last.list_topics(timeout=60)
    secret.write_text("another-one")
    hashed = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion("carol", hashed, b"another-one")
    cluster.admin().alter_user_scram_credentials([change])["carol"].result(60)

    def is_refused() -> bool:
        last.poll(0.1)
        return any(error.code() == KafkaError._AUTHENTICATION for error in refused)

    wait_until(is_refused, "the sessions to end")
