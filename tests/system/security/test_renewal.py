"""Sessions that end, and tokens that expire: both are renewed while the service goes on as if nothing was."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from kunicorn.supervisor import credentials
from tests.kafka.secured import PASSWORDS, SESSION_MS, SecuredCluster
from tests.system.members import MemberProcess
from tests.system.scene import Scene

SceneMaker = Callable[..., Scene]
RENEWED = "authenticated anew with"
TOKEN_SECONDS = 10.0


def handles_on(stage: Scene, member: MemberProcess, seconds: float) -> None:
    """Record after record for so long: each is handled at once, by the same workers in the same generation."""
    member.wait_running(2)
    generation, workers = member.generation(), [worker["pid"] for worker in member.workers()]
    until = time.monotonic() + seconds
    sent = 0
    while time.monotonic() < until:
        for partition in range(2):
            stage.send(partition, "x")
            stage.wait_handled(partition, sent, member)
        sent += 1
    assert member.generation() == generation
    assert [worker["pid"] for worker in member.workers()] == workers
    assert member.status()["problem"] is None
    assert member.stop() == 0
    assert stage.committed() == {0: sent, 1: sent}
    assert stage.judge().holds


def brief(secured: SecuredCluster) -> dict[str, Any]:
    """The listener whose sessions last for `SESSION_MS`."""
    return {
        "bootstrap_servers": [secured.server("BRIEF")],
        "security_protocol": "SASL_SSL",
        "ssl_ca_location": str(secured.certificates.ca),
    }


@pytest.mark.long
def test_sessions_are_renewed_on_the_living_connection(secured: SecuredCluster, scene: SceneMaker) -> None:
    login = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "alice", "sasl_password": PASSWORDS["alice"]}
    stage = scene({**brief(secured), **login})
    member = stage.members.start()
    handles_on(stage, member, 2.5 * SESSION_MS / 1000)
    said = member.output()
    assert said.count(RENEWED) >= 4, "control, offsets and others, each at least once"
    assert len(re.findall(r"connected to .* for control", said)) == 1, "the coordinator's connection lived on"
    assert "closed the connection" not in said
    assert "Disconnected" not in said, "the workers' connections lived on, too"


@pytest.mark.long
@pytest.mark.scenario("0142 reauthentication")
def test_sessions_are_renewed_between_two_fetches_of_our_own(secured: SecuredCluster, scene: SceneMaker) -> None:
    login = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "alice", "sasl_password": PASSWORDS["alice"]}
    stage = scene({**brief(secured), **login, "fetcher": "own"})
    member = stage.members.start()
    handles_on(stage, member, 2.5 * SESSION_MS / 1000)
    said = member.output()
    assert len(re.findall(rf"worker-\d.* {RENEWED}", said)) >= 2, "each worker's connection, at least once"
    assert len(re.findall(r"worker-\d.* connected to .* for fetch", said)) == 2, "and it lived on"
    assert "fetching from node" not in said


@pytest.mark.long
def test_tokens_are_renewed_before_they_expire_and_shared_with_the_workers(
    secured: SecuredCluster, scene: SceneMaker, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    stage = scene(
        {
            **brief(secured),
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauthbearer_token_provider": "tests.system.handlers.tokens:provide",
        },
        env={"TOKEN_CALLS": str(calls), "TOKEN_SECONDS": str(TOKEN_SECONDS)},
    )
    began = time.monotonic()
    member = stage.members.start()
    handles_on(stage, member, 2.2 * TOKEN_SECONDS)
    lives = (time.monotonic() - began) / (credentials._RENEW_AT * TOKEN_SECONDS)
    assert 3 <= len(calls.read_text().splitlines()) <= lives + 2, "one call a lifetime, not one a connection"
    assert "OAUTHBEARER token set failed" not in member.output()
    assert "SASL_AUTHENTICATION_FAILED" not in member.output()
    assert len(re.findall(r"connected to .* for control", member.output())) == 1


@pytest.mark.long
def test_a_password_that_is_rotated_in_its_file_reaches_supervisor_and_workers(
    secured: SecuredCluster, scene: SceneMaker, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text(PASSWORDS["carol"])
    login = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "carol", "sasl_password_file": str(file)}
    stage = scene({**brief(secured), **login}, may=("carol",))
    member = stage.members.start()
    member.wait_running(2)
    file.write_text("distinctive-n3w")
    member.wait(lambda: "holds another password" in member.output(), "the new password to be found")
    change = UserScramCredentialUpsertion(
        "carol", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"distinctive-n3w"
    )
    secured.admin().alter_user_scram_credentials([change])["carol"].result(60)
    handles_on(stage, member, 2.5 * SESSION_MS / 1000)
    assert "distinctive" not in member.output()


@pytest.mark.long
def test_a_certificate_that_is_renewed_in_its_files_reaches_supervisor_and_workers_without_a_restart(
    secured: SecuredCluster, scene: SceneMaker, tmp_path: Path
) -> None:
    made, mounted = secured.certificates, {name: tmp_path / name for name in ("tls.crt", "tls.key")}
    made.sign_client("client-2")

    def mount(client: str) -> None:
        shutil.copy(made.certificate(client), mounted["tls.crt"])
        shutil.copy(made.key(client), mounted["tls.key"])

    mount("client")
    stage = scene(
        {
            "bootstrap_servers": [secured.server("MTLS")],
            "security_protocol": "SSL",
            "ssl_ca_location": str(made.ca),
            "ssl_certificate_location": str(mounted["tls.crt"]),
            "ssl_key_location": str(mounted["tls.key"]),
        },
        may=("CN=client", "CN=client-2"),
    )
    member = stage.members.start()
    member.wait_running(2)
    generation, workers = member.generation(), {worker["pid"] for worker in member.workers()}
    mount("client-2")
    member.wait(lambda: "the files of kafka.ssl_… are others" in member.output(), "the new files to be found")
    member.wait(lambda: not workers & {worker["pid"] for worker in member.workers()}, "other workers")
    member.wait_running(2)
    assert member.generation() == generation, "workers are replaced without a rebalance"
    # Connections that live on keep the name that they were made with: these end, and that name's rights with them.
    broker = secured.broker(1)
    broker.stop()
    broker.start()
    secured.wait_until_ready()
    secured.forbid("CN=client")
    for partition in range(2):
        stage.send(partition, "x")
    stage.wait_all_committed()
    assert member.stop() == 0
    assert stage.judge().holds
