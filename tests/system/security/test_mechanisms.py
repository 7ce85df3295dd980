"""Every way to secure connections: the whole service handles records over it, with the least rights there are, and no
secret is anywhere that people, scrapers or other processes look.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from kunicorn.clients.access import Access
from kunicorn.clients.range_reader import RangeUnreadable
from kunicorn.positions import OffsetRange
from kunicorn.settings import Settings
from tests.fakes.answering import Answer, answering
from tests.kafka.secured import KEY_PASSWORD, PASSWORDS, SecuredCluster
from tests.system.handlers.tokens import unsigned
from tests.system.members import leave
from tests.system.procfs import living_in_session
from tests.system.producing import produce
from tests.system.scene import Scene
from tests.system.security import ways

SceneMaker = Callable[..., Scene]


def handles_everything(stage: Scene) -> None:
    """Records of every partition are handled and committed by a member that stops in order."""
    for partition in range(stage.partitions):
        stage.send(partition, *["x"] * 10)
    member = stage.members.start()
    for partition in range(stage.partitions):
        stage.wait_handled(partition, 9, member)
    assert member.wait(member.status, "its status")["problem"] is None
    assert member.stop() == 0
    assert stage.committed() == dict.fromkeys(range(stage.partitions), 10)
    assert "Traceback" not in member.output()


MORE_WAYS = ("TLS", "PLAIN", "SCRAM-SHA-256")


@pytest.mark.parametrize(
    "way", ["mTLS", "SCRAM-SHA-512", *(pytest.param(way, marks=pytest.mark.long) for way in MORE_WAYS)]
)
def test_the_service_handles_records_over(secured: SecuredCluster, scene: SceneMaker, way: str) -> None:
    handles_everything(scene(ways.of(secured, way)))


@pytest.mark.parametrize(
    "way", ["SCRAM-SHA-256", *(pytest.param(way, marks=pytest.mark.long) for way in ("TLS", "mTLS", "PLAIN"))]
)
def test_our_own_fetcher_fetches_over(secured: SecuredCluster, scene: SceneMaker, way: str) -> None:
    handles_everything(scene({**ways.of(secured, way), "fetcher": "own"}))


@pytest.mark.parametrize("way", ["TLS", "mTLS", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_job_reads_ranges_as_columns_over(secured: SecuredCluster, topic: str, way: str) -> None:
    secured.create_topic(topic)
    for who in ("alice", "CN=client"):
        secured.allow(who, (ResourceType.TOPIC, topic, AclOperation.READ))
    produce(secured.bootstrap, topic, 100)
    told = {
        "kafka": ways.of(secured, way),
        "group": {"id": topic, "topics": [topic]},
        "handler": {"entrypoint": "x:y"},
    }
    reader = Access(Settings.model_validate(told)).columns()
    try:
        found = [message.offset() for rows in reader.read(OffsetRange(topic, 0, 0, 100)) for message in rows]
    finally:
        reader.close()
    assert found == [*range(100)]


def test_a_job_that_may_not_read_a_topic_is_told_which_right_it_lacks(secured: SecuredCluster, topic: str) -> None:
    secured.create_topic(topic)
    produce(secured.bootstrap, topic, 5)
    told = {
        "kafka": ways.of(secured, "PLAIN"),
        "group": {"id": topic, "topics": [topic]},
        "handler": {"entrypoint": "x:y"},
    }
    reader = Access(Settings.model_validate(told)).columns(patience=30.0)
    try:
        with pytest.raises(RangeUnreadable, match=f"{topic}.*READ"):
            list(reader.read(OffsetRange(topic, 0, 0, 5)))
    finally:
        reader.close()


def test_a_certificate_for_another_name_passes_where_names_are_not_compared_and_that_is_said(
    secured: SecuredCluster, scene: SceneMaker
) -> None:
    stage = scene(ways.of(secured, "misnamed"))
    handles_everything(stage)
    assert 'ssl_endpoint_identification_algorithm = "none"' in stage.members.started[0].output()


def test_a_provider_of_the_users_own_is_called_once_for_all_connections(
    secured: SecuredCluster, scene: SceneMaker, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    stage = scene(
        {
            "bootstrap_servers": [secured.server("SECURE", "localhost")],
            "security_protocol": "SASL_SSL",
            "ssl_ca_location": str(secured.certificates.ca),
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauthbearer_token_provider": "tests.system.handlers.tokens:provide",
        },
        env={"TOKEN_CALLS": str(calls)},
    )
    handles_everything(stage)
    assert len(calls.read_text().splitlines()) == 1, "two workers and several connections, one token"


@contextmanager
def token_endpoint() -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """The client credentials grant on a free port; what it was asked."""
    asked: list[Mapping[str, Any]] = []

    def answer(to: BaseHTTPRequestHandler, body: bytes) -> Answer:
        who = base64.b64decode(to.headers["Authorization"].removeprefix("Basic ")).decode()
        asked.append({"who": who, **parse_qs(body.decode())})
        token, _ = unsigned("alice", 300)
        return Answer(json.dumps({"access_token": token, "expires_in": 300, "token_type": "Bearer"}).encode())

    with answering(answer) as url:
        yield f"{url}/token", asked


def test_a_token_endpoint_is_asked_by_client_credentials(
    secured: SecuredCluster, scene: SceneMaker, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret of the client\n")
    with token_endpoint() as (url, asked):
        stage = scene(
            {
                "bootstrap_servers": [secured.server("LOGIN")],
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_oauthbearer_token_endpoint_url": url,
                "sasl_oauthbearer_client_id": "orders",
                "sasl_oauthbearer_client_secret_file": str(secret),
                "sasl_oauthbearer_scope": "kafka",
            }
        )
        handles_everything(stage)
    assert asked == [{"who": "orders:s3cret of the client", "grant_type": ["client_credentials"], "scope": ["kafka"]}]


def test_a_static_members_slot_is_freed_over_the_services_own_login(secured: SecuredCluster, scene: SceneMaker) -> None:
    """The rights to consume are enough: removing a member asks for READ on the group, describing it for DESCRIBE."""
    stage = scene(ways.of(secured, "SCRAM-SHA-256"), group={"group_instance_id": "pod-0"})
    member = stage.members.start()
    member.wait_running(stage.partitions)
    member.kill()
    done = leave(member, "--instance", "pod-0", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    removed = json.loads(done.stdout)["removed"]
    assert (removed["instance_id"], len(removed["partitions"])) == ("pod-0", stage.partitions)
    assert "has no static member 'pod-0'" in leave(member, "--instance", "pod-0", "--yes").stderr
    assert PASSWORDS["alice"] not in done.stdout + done.stderr


SECRETS = (PASSWORDS["alice"], KEY_PASSWORD, "distinctive")


def test_secrets_from_files_show_up_nowhere(secured: SecuredCluster, scene: SceneMaker, tmp_path: Path) -> None:
    password, key_password = tmp_path / "password", tmp_path / "key-password"
    password.write_text(PASSWORDS["alice"])
    key_password.write_text(KEY_PASSWORD + "\n")
    files = secured.certificates
    stage = scene(
        {
            "bootstrap_servers": [secured.server("SECURE")],
            "security_protocol": "SASL_SSL",
            "ssl_ca_location": str(files.ca),
            "ssl_certificate_location": str(files.certificate("client")),
            "ssl_key_location": str(files.key("client-encrypted")),
            "ssl_key_password_file": str(key_password),
            "sasl_mechanism": "PLAIN",
            "sasl_username": "alice",
            "sasl_password_file": str(password),
        }
    )
    stage.send(0, "x")
    member = stage.members.start()
    stage.wait_handled(0, 0, member)
    running = living_in_session(member.pid)
    assert len(running) >= 4, "supervisor, template and two workers"
    seen = {
        f"/proc/{process.pid}/{what}": Path(f"/proc/{process.pid}/{what}").read_text(errors="replace")
        for process in running
        for what in ("cmdline", "environ")
    }
    seen |= {path: member.get(path)[1] for path in ("/status", "/metrics", "/readyz", "/")}
    assert member.stop() == 0
    seen["log"] = member.output()
    assert [(place, secret) for place, text in seen.items() for secret in SECRETS if secret in text] == []
