"""What a broker refuses, or is refused for: one message that names the cause and the setting to correct."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AclOperation, ResourceType

from kunicorn.commands.check.session import check
from kunicorn.errors import ExitCode, PeerError
from kunicorn.kafka.auth import Address, BearerToken, Sasl, Security
from kunicorn.kafka.connection import Connection
from kunicorn.kafka.errors import AuthenticationFailed, ConnectionLost
from kunicorn.kafka.tls import Tls
from kunicorn.kafka.versions import Api
from kunicorn.settings import Settings
from tests.kafka.access import admit, deny
from tests.kafka.secured import PASSWORDS, SecuredCluster
from tests.system.members import Members
from tests.system.outputs import committed_outputs
from tests.system.producing import committed_offsets, produce
from tests.system.scene import Scene

SceneMaker = Callable[..., Scene]
LIMIT = 60.0


def login(mechanism: str = "SCRAM-SHA-256", user: str = "alice", password: str | None = None) -> Sasl:
    secret = PASSWORDS["alice"] if password is None else password
    return Sasl(mechanism, username=user, password=lambda: secret)


async def refusal(secured: SecuredCluster, listener: str, security: Security) -> PeerError:
    """What opening a connection ends in; the password is not in it."""
    address = Address(*_host_and_port(secured, listener))
    with pytest.raises(PeerError) as refused:
        await Connection.open(address, security, "kunicorn", LIMIT)
    assert not any(password in str(refused.value) for password in PASSWORDS.values())
    return refused.value


def _host_and_port(secured: SecuredCluster, listener: str) -> tuple[str, int]:
    host, _, port = (secured.bootstrap if listener == "PLAINTEXT" else secured.server(listener)).partition(":")
    return host, int(port)


# -- TLS -----------------------------------------------------------------------------------------------------------


async def test_an_unknown_ca_is_told_with_the_setting(secured: SecuredCluster) -> None:
    error = await refusal(secured, "TLS", Security("SSL", Tls(ca_location=str(secured.certificates.other_ca))))
    assert isinstance(error, AuthenticationFailed)
    assert "kafka.ssl_ca_location" in str(error)


async def test_a_certificate_for_another_name_is_told_with_the_name(secured: SecuredCluster) -> None:
    error = await refusal(secured, "MISNAMED", Security("SSL", Tls(ca_location=str(secured.certificates.ca))))
    assert isinstance(error, AuthenticationFailed)
    assert "'127.0.0.1'" in str(error)
    assert "advertised.listeners" in str(error)


@pytest.mark.parametrize("who", [None, "stranger"])
async def test_a_missing_or_unknown_client_certificate_is_told_with_the_setting(
    secured: SecuredCluster, who: str | None
) -> None:
    files = secured.certificates
    tls = Tls(str(files.ca)) if who is None else Tls(str(files.ca), str(files.certificate(who)), str(files.key(who)))
    error = await refusal(secured, "MTLS", Security("SSL", tls))
    assert isinstance(error, AuthenticationFailed), error
    assert "ssl_certificate_location" in str(error)


@pytest.mark.parametrize(
    ("listener", "protocol"), [("PLAINTEXT", "SSL"), ("TLS", "PLAINTEXT"), ("LOGIN", "PLAINTEXT"), ("LOGIN", "SSL")]
)
async def test_the_wrong_protocol_points_to_security_protocol(
    secured: SecuredCluster, listener: str, protocol: str
) -> None:
    address = Address(*_host_and_port(secured, listener))
    security = Security(protocol, Tls(ca_location=str(secured.certificates.ca)))

    async def ask() -> None:
        connection = await Connection.open(address, security, "kunicorn", LIMIT)
        await connection.request(Api.FIND_COORDINATOR, {"coordinator_keys": ["g"], "key_type": 0}, LIMIT)

    with pytest.raises(PeerError) as refused:
        await ask()
    assert isinstance(refused.value, ConnectionLost) or "speaks TLS" in str(refused.value)
    assert "security_protocol" in str(refused.value)


# -- SASL ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("who", [("alice", "wrong"), ("nobody", "x")])
async def test_wrong_credentials_are_told_with_the_settings(
    secured: SecuredCluster, mechanism: str, who: tuple[str, str]
) -> None:
    error = await refusal(secured, "LOGIN", Security("SASL_PLAINTEXT", sasl=login(mechanism, *who)))
    assert isinstance(error, AuthenticationFailed)
    for part in (who[0], mechanism, "SASL_AUTHENTICATION_FAILED (58)", "sasl_username", "sasl_password"):
        assert part in str(error)


async def test_a_mechanism_that_the_listener_lacks_is_told_with_those_it_has(secured: SecuredCluster) -> None:
    error = await refusal(secured, "PLAINONLY", Security("SASL_PLAINTEXT", sasl=login()))
    assert isinstance(error, AuthenticationFailed)
    assert "UNSUPPORTED_SASL_MECHANISM (33): the listener offers PLAIN; set kafka.sasl_mechanism" in str(error)


async def test_a_login_where_none_is_asked_for_is_told_with_the_setting(secured: SecuredCluster) -> None:
    error = await refusal(secured, "PLAINTEXT", Security("SASL_PLAINTEXT", sasl=login()))
    assert isinstance(error, AuthenticationFailed)
    assert "ILLEGAL_SASL_STATE (34)" in str(error)
    assert "kafka.security_protocol" in str(error)


async def test_a_token_that_is_refused_is_told_with_the_brokers_reason(secured: SecuredCluster) -> None:
    sasl = Sasl("OAUTHBEARER", token=lambda: BearerToken("e30.bm9uc2Vuc2U.", {}))
    error = await refusal(secured, "LOGIN", Security("SASL_PLAINTEXT", sasl=sasl))
    assert isinstance(error, AuthenticationFailed)
    assert "invalid_token" in str(error)
    assert "sasl_oauthbearer_" in str(error)


# -- what the commands say -------------------------------------------------------------------------------------------


def checked(secured: SecuredCluster, topic: str, **kafka: Any) -> tuple[ExitCode, str]:
    """The exit code and the lines of `kunicorn check`."""
    lines: list[str] = []
    settings = Settings.model_validate(
        {
            "kafka": {"bootstrap_servers": [secured.server("LOGIN")], "security_protocol": "SASL_PLAINTEXT", **kafka},
            "group": {"id": topic, "topics": [topic]},
            "handler": {"entrypoint": "tests.system.handlers.audited:handle"},
        }
    )
    return check(settings, lambda finding: lines.append(str(finding))), "\n".join(lines)


def test_check_reports_wrong_credentials_once_and_nothing_else_of_the_cluster(
    secured: SecuredCluster, topic: str
) -> None:
    code, said = checked(secured, topic, sasl_mechanism="PLAIN", sasl_username="alice", sasl_password="distinctive-no")
    assert code is ExitCode.CONFIGURATION
    (line,) = (line for line in said.splitlines() if "FAILED" in line)
    assert line.startswith("FAILED  brokers")
    assert "sasl_password" in line
    assert "no broker answered" not in said
    assert "distinctive" not in said


def test_check_does_not_ask_for_a_broker_to_be_started_that_speaks_tls(secured: SecuredCluster, topic: str) -> None:
    code, said = checked(secured, topic, bootstrap_servers=[secured.server("TLS")], security_protocol="PLAINTEXT")
    assert code is ExitCode.CONFIGURATION
    assert "set kafka.security_protocol" in said
    assert "start them" not in said


def test_check_tells_of_a_file_that_is_no_certificate_once_and_by_its_setting(
    secured: SecuredCluster, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    code, said = checked(
        secured,
        topic,
        bootstrap_servers=[secured.server("TLS")],
        security_protocol="SSL",
        ssl_ca_location=str(tmp_path / "ca.pem"),
    )
    assert code is ExitCode.CONFIGURATION
    (line,) = (line for line in said.splitlines() if "FAILED" in line)
    assert "kafka.ssl_ca_location" in line
    assert "librdkafka" not in line


@pytest.mark.parametrize(
    ("provider", "reason"),
    [
        ("fail", "RuntimeError: no credentials in this place"),
        ("nowhere", "sasl_oauthbearer_token_provider"),
    ],
)
def test_check_tells_why_a_provider_gives_no_token(
    secured: SecuredCluster, topic: str, provider: str, reason: str
) -> None:
    where = f"tests.system.handlers.tokens:{provider}"
    code, said = checked(secured, topic, sasl_mechanism="OAUTHBEARER", sasl_oauthbearer_token_provider=where)
    assert code is ExitCode.CONFIGURATION
    assert "FAILED  token" in said
    assert reason in said


def test_a_wrong_password_is_said_once_and_corrected_without_a_restart(
    secured: SecuredCluster, scene: SceneMaker, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("distinctive-wrong")
    stage = scene(
        {
            "bootstrap_servers": [secured.server("SECURE")],
            "security_protocol": "SASL_SSL",
            "ssl_ca_location": str(secured.certificates.ca),
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": "alice",
            "sasl_password_file": str(password),
        }
    )
    stage.send(0, "x")
    member = stage.members.start()
    member.wait(lambda: "sasl_password" in str(member.status().get("problem")), "the problem in /status")
    assert (member.get("/livez")[0], member.get("/readyz")[0]) == (200, 503)
    password.write_text(PASSWORDS["alice"] + "\n")
    stage.wait_handled(0, 0, member)
    member.wait(lambda: member.status()["problem"] is None and member.get("/readyz")[0] == 200, "ready")
    assert member.output().count("SASL_AUTHENTICATION_FAILED") == 1
    assert "no broker answer" not in member.output()
    assert "distinctive" not in member.output()
    assert member.stop() == 0


# -- rights ----------------------------------------------------------------------------------------------------------


def bob(secured: SecuredCluster) -> dict[str, Any]:
    return {
        "bootstrap_servers": [secured.server("LOGIN")],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "bob",
        "sasl_password": PASSWORDS["bob"],
    }


@pytest.mark.long
def test_a_topic_that_may_be_seen_but_not_read_halts_until_the_right_that_is_missing_is_granted(
    secured: SecuredCluster, scene: SceneMaker
) -> None:
    stage = scene(bob(secured), may=())
    secured.allow(
        "bob",
        (ResourceType.TOPIC, stage.topic, AclOperation.DESCRIBE),
        (ResourceType.GROUP, stage.topic, AclOperation.READ),
    )
    stage.send(0, "x")
    member = stage.members.start()
    member.wait(lambda: len(member.partitions("halted")) == 2, "both partitions to halt")
    for partition in member.partitions("halted"):
        assert f"this user needs READ on topic '{stage.topic}'" in partition["reason"]
    member.wait_said("cannot be committed: TOPIC_AUTHORIZATION_FAILED (29): this user needs READ")
    secured.allow("bob", (ResourceType.TOPIC, stage.topic, AclOperation.READ))
    stage.wait_handled(0, 0, member)
    member.wait_running(2)
    told = member.output().count(f"needs READ on topic '{stage.topic}'; tried again")
    assert told in (1, 2), "once for each partition, or for both if they are denied at the same time"
    assert member.stop() == 0


def test_a_topic_that_may_be_read_no_more_holds_up_no_other_and_goes_on_without_a_double_when_it_may(
    secured: SecuredCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    """A right that is taken away while a worker commits several topics together, in transactions, and given back."""
    closed, out, records = f"{topic}.closed", f"{topic}.out", 2000
    for name in (topic, closed, out):
        secured.create_topic(name, 1)
    secured.allow(
        "bob",
        *((ResourceType.TOPIC, name, AclOperation.READ) for name in (topic, closed)),
        (ResourceType.GROUP, topic, AclOperation.READ),
        (ResourceType.TOPIC, out, AclOperation.WRITE),
        (ResourceType.TRANSACTIONAL_ID, "*", AclOperation.ALL),
    )
    members = members_of(
        secured.bootstrap,
        topic,
        entrypoint="tests.system.handlers.sending:copy_value",
        workers=1,
        settings={
            "kafka": bob(secured),
            "group": {"topics": [topic, closed]},
            "producing": {"delivery": "transactions", "topic": out, "transaction_max_records": 10},
        },
        env={"KUNICORN_HANDLER_MS": "2"},
    )
    for name, value in ((topic, b"other"), (closed, b"closed")):
        produce(secured.bootstrap, name, records, value=value)

    def consumed(name: str) -> int:
        try:
            (at,) = committed_offsets(secured.bootstrap, topic, name, 1).values()
        except KafkaException:
            return 0  # They are not stable while one transaction follows the other.
        return max(0, at)

    member = members.start()
    member.wait(lambda: consumed(closed) > 50, "the first transactions")
    deny(secured, "bob", (ResourceType.TOPIC, closed, AclOperation.READ))
    member.wait(lambda: [each["topic"] for each in member.partitions("halted")] == [closed], "it to halt")
    member.wait(lambda: consumed(topic) == records, "the other topic to be committed")
    admit(secured, "bob", (ResourceType.TOPIC, closed, AclOperation.READ))
    member.wait(lambda: consumed(closed) == records, "the rest of it to be committed")
    assert member.stop() == 0, member.output()[-3000:]
    outputs = committed_outputs(secured.bootstrap, out, 1)
    assert (outputs["other"], outputs["closed"]) == (records, records)


def test_what_a_broker_refuses_to_commit_at_the_stop_is_told_by_the_exit_code(
    secured: SecuredCluster, scene: SceneMaker
) -> None:
    stage = scene(bob(secured), may=("bob",), group={"commit_timeout_ms": 1000, "commit_interval_ms": 60_000})
    stage.send(0, *["x"] * 5)
    member = stage.members.start()
    stage.wait_handled(0, 4, member)
    deny(secured, "bob", (ResourceType.TOPIC, stage.topic, AclOperation.READ))
    assert member.stop() == ExitCode.NOT_ALL_COMMITTED
    assert f"{stage.topic}-0@5" in member.output(), "what it is about"
    assert "this user needs READ" in member.output(), "and why"


def test_check_names_each_right_that_is_missing(secured: SecuredCluster, topic: str) -> None:
    secured.create_topic(topic, 2)
    own = {
        name: value for name, value in bob(secured).items() if name not in {"bootstrap_servers", "security_protocol"}
    }
    secured.allow("bob", (ResourceType.TOPIC, topic, AclOperation.DESCRIBE))
    secured.allow("bob", (ResourceType.GROUP, topic, AclOperation.DESCRIBE))
    code, said = checked(secured, topic, **own)
    assert code is ExitCode.CONFIGURATION
    assert f"FAILED  rights    {topic}: this user may not READ; grant it READ on the topic" in said
    assert f"group '{topic}' can be seen but not joined: GROUP_AUTHORIZATION_FAILED (30): " in said
    secured.allow("bob", (ResourceType.TOPIC, topic, AclOperation.READ))
    secured.allow("bob", (ResourceType.GROUP, topic, AclOperation.READ))
    code, said = checked(secured, topic, **own)
    assert code is ExitCode.CLEAN, said
    assert "ok      rights    this user may READ as needed" in said
