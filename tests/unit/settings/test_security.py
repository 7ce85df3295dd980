"""What [kafka] may say about security, what contradicts itself, and where secrets come from."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kunicorn.clients.config import consumer_properties, security_of, token_request
from kunicorn.errors import ConfigError
from kunicorn.ipc.messages import Configure, Token
from kunicorn.kafka.tls import context
from kunicorn.settings import Settings, shown
from kunicorn.settings.security import without_secrets
from tests.kafka.certificates import make_certificates
from tests.unit.settings.files import LEAST, loaded, problems

PLAIN = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "alice"}
TOKENS = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
URL = "sasl_oauthbearer_token_endpoint_url"
ENDPOINT = {
    URL: "https://login.example.com/token",
    "sasl_oauthbearer_client_id": "orders",
    "sasl_oauthbearer_client_secret": "hunter2",
}


def text(settings: Mapping[str, str]) -> str:
    """A file with these settings in [kafka]."""
    lines = "\n".join(f'{name} = "{value}"' for name, value in settings.items())
    return LEAST.replace("[kafka]\n", f"[kafka]\n{lines}\n")


CONTRADICTIONS: dict[str, tuple[Mapping[str, str], str]] = {
    "no mechanism": ({"security_protocol": "SASL_SSL"}, "kafka.sasl_mechanism: not set, although security_protocol"),
    "no SASL protocol": (
        {"security_protocol": "SSL", **dict(list(PLAIN.items())[1:]), "sasl_password": "hunter2"},
        'kafka.sasl_mechanism = "PLAIN": no login with security_protocol = SSL; set that to SASL_SSL',
    ),
    "no password": (PLAIN, "kafka.sasl_password: not set; sasl_mechanism = PLAIN needs it, or sasl_password_file"),
    "no user": (
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-256", "sasl_password": "hunter2"},
        "kafka.sasl_username: not set; sasl_mechanism = SCRAM-SHA-256 needs it",
    ),
    "password without use": (
        {**TOKENS, **ENDPOINT, "sasl_password": "hunter2"},
        "kafka.sasl_password = (not shown): nothing uses it without sasl_mechanism = PLAIN or SCRAM",
    ),
    "key without certificate": (
        {"security_protocol": "SSL", "ssl_key_location": __file__},
        "a key without its certificate; set ssl_certificate_location, too",
    ),
    "certificate without key": (
        {"security_protocol": "SSL", "ssl_certificate_location": __file__},
        "a certificate without its key; set ssl_key_location, too",
    ),
    "TLS files without TLS": (
        {"ssl_ca_location": __file__},
        "no TLS with security_protocol = PLAINTEXT; set that to SSL or SASL_SSL, or remove this",
    ),
    "no such file": (
        {"security_protocol": "SSL", "ssl_ca_location": "/no/such/ca.pem"},
        'kafka.ssl_ca_location = "/no/such/ca.pem": cannot be read: No such file or directory',
    ),
    "no source of tokens": (TOKENS, "needs either this or sasl_oauthbearer_token_provider; set one of them"),
    "two sources of tokens": (
        {**TOKENS, **ENDPOINT, "sasl_oauthbearer_token_provider": "shop.kafka:token"},
        "needs either this or sasl_oauthbearer_token_provider; set one of them",
    ),
    "half a client": (
        {**TOKENS, **{name: value for name, value in ENDPOINT.items() if "secret" not in name}},
        "kafka.sasl_oauthbearer_client_secret: goes with sasl_oauthbearer_token_endpoint_url; set both, or neither",
    ),
    "credentials in an address": (
        {**TOKENS, **ENDPOINT, "sasl_oauthbearer_token_endpoint_url": "https://a:hunter2@h/"},
        "holds credentials; set sasl_oauthbearer_client_id",
    ),
    "extensions of no form": (
        {**TOKENS, **ENDPOINT, "sasl_oauthbearer_extensions": "auth=mine"},
        "not name=value pairs",
    ),
    "an empty secret": ({**PLAIN, "sasl_password": ""}, "empty; leave it out, or give it a value"),
    "a mechanism that is not ours": ({**PLAIN, "sasl_mechanism": "GSSAPI"}, "it can be 'PLAIN', 'SCRAM-SHA-256'"),
}


@pytest.mark.parametrize("wrong", CONTRADICTIONS)
def test_a_contradiction_is_refused_with_names_and_remedy(tmp_path: Path, wrong: str) -> None:
    settings, complaint = CONTRADICTIONS[wrong]
    found = "\n".join(problems(tmp_path, text(settings)))
    assert complaint in found
    assert "hunter2" not in found


# -- secrets ---------------------------------------------------------------------------------------------------------


def test_a_secrets_file_counts_without_its_last_line_break_and_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(" two words \n\n")
    kafka = loaded(tmp_path, text({**PLAIN, "sasl_password_file": str(file)})).kafka
    assert kafka.secret("sasl_password") == " two words \n"
    file.write_text("rotated\r\n")
    assert kafka.secret("sasl_password") == "rotated"
    sasl = security_of(kafka, None).sasl
    assert sasl is not None
    assert sasl.password() == "rotated"
    file.write_text("")
    assert sasl.password() == "rotated", "a file that is just being written changes nothing"
    file.unlink()
    assert sasl.password() == "rotated"


def test_a_key_that_is_renewed_with_another_password_opens_for_the_next_connection(tmp_path: Path) -> None:
    mounted, renewed = tmp_path / "mounted", tmp_path / "renewed"
    for directory, password in ((mounted, "first"), (renewed, "second")):
        directory.mkdir()
        make_certificates(directory, password)
        (directory / "password").write_text(password)
    files = {
        "ssl_certificate_location": "client.pem",
        "ssl_key_location": "client-encrypted.key",
        "ssl_key_password_file": "password",
    }
    named = {setting: str(mounted / name) for setting, name in files.items()}
    security = security_of(loaded(tmp_path, text({"security_protocol": "SSL", **named})).kafka, None)
    context(security.tls)
    for name in files.values():
        shutil.copy(renewed / name, mounted / name)
    context(security.tls)


@pytest.mark.parametrize(
    ("content", "complaint"), [(None, "No such file"), (b"", "is empty"), (b"\n", "is empty"), (b"\xff", "not UTF-8")]
)
def test_a_secrets_file_that_is_of_no_use_is_refused(tmp_path: Path, content: bytes | None, complaint: str) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    (only,) = problems(tmp_path, text({**PLAIN, "sasl_password_file": str(file)}))
    assert only.startswith("kafka.sasl_password_file")
    assert complaint in only


def test_a_secret_given_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2")
    both = text({**PLAIN, "sasl_password": "hunter2", "sasl_password_file": str(file)})
    (only,) = problems(tmp_path, both)
    assert "sasl_password is set, too; remove one of them" in only


def test_a_secret_comes_from_the_environment_as_any_setting(tmp_path: Path) -> None:
    settings = loaded(tmp_path, text(PLAIN), {"KUNICORN_KAFKA__SASL_PASSWORD": "12345"})
    assert settings.kafka.secret("sasl_password") == "12345"


def test_processes_that_run_the_users_code_do_not_inherit_secrets() -> None:
    environ = {"KUNICORN_KAFKA__SASL_PASSWORD": "hunter2", "KUNICORN_KAFKA__sasl_username": "alice", "PATH": "/bin"}
    assert without_secrets(environ) == {"KUNICORN_KAFKA__sasl_username": "alice", "PATH": "/bin"}


def secretive(tmp_path: Path) -> Settings:
    return loaded(tmp_path, text({**PLAIN, "sasl_password": "hunter2"}))


def test_nothing_that_is_printed_of_the_settings_holds_a_secret(tmp_path: Path) -> None:
    settings = secretive(tmp_path)
    token = Token("hunter2", 1.0, "alice", {"key": "hunter2"})
    client = dict(consumer_properties(settings, "c"))
    assert client["sasl.password"] == "hunter2"
    configure: dict[str, Any] = dict.fromkeys(Configure.__struct_fields__, 0) | {"client": client, "token": token}
    request = token_request(loaded(tmp_path, text({**TOKENS, **ENDPOINT})).kafka)
    assert request.client_secret == "hunter2"
    printed = [settings, settings.kafka, security_of(settings.kafka, None), token, Configure(**configure), request]
    assert "hunter2" not in f"{printed!r} {shown(settings)}"


def test_an_error_about_the_settings_holds_no_secret_even_as_a_traceback(tmp_path: Path) -> None:
    settings = text({**PLAIN, "sasl_password": "hunter2", "security_protocol": "SSL"})
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, settings)
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("port", ["abc", "99999", "80 80", "80/a\\tb"])
def test_a_token_endpoint_whose_address_is_none_is_refused(tmp_path: Path, port: str) -> None:
    found = problems(tmp_path, text({**TOKENS, **ENDPOINT, URL: f"https://login.example.com:{port}"}))
    assert any("not an address" in line and "write it such as https://login" in line for line in found)


# -- from settings to clients ------------------------------------------------------------------------------------------


def test_the_workers_get_librdkafkas_names_for_the_same_settings(tmp_path: Path) -> None:
    found = consumer_properties(secretive(tmp_path), "c")
    assert {name: value for name, value in found.items() if name.startswith(("sasl", "ssl", "security"))} == {
        "security.protocol": "SASL_SSL",
        "ssl.endpoint.identification.algorithm": "https",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "hunter2",
    }


def test_what_is_no_certificate_is_refused_before_anybody_connects(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("not a certificate")
    kafka = loaded(tmp_path, text({"security_protocol": "SSL", "ssl_ca_location": str(file)})).kafka
    with pytest.raises(ConfigError, match=r"kafka\.ssl_ca_location = .*ca\.pem' holds no CA certificates"):
        security_of(kafka, None)


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({**PLAIN, "sasl_password": "x"}, ""),
        ({**PLAIN, "sasl_password": "x", "security_protocol": "SASL_PLAINTEXT"}, "in clear text"),
        ({"security_protocol": "SSL", "ssl_endpoint_identification_algorithm": "none"}, "any certificate"),
        ({**TOKENS, **ENDPOINT}, ""),
        ({**TOKENS, **ENDPOINT, URL: "http://login.example.com/token"}, "gets the client's secret"),
        ({**TOKENS, **ENDPOINT, URL: "http://localhost:8080/token"}, ""),
        ({**TOKENS, **ENDPOINT, URL: "http://127.0.0.1:8080/token"}, ""),
    ],
)
def test_what_works_but_should_be_known_is_warned_about(
    tmp_path: Path, settings: Mapping[str, str], warned: str
) -> None:
    warnings = loaded(tmp_path, text(settings)).kafka.warnings()
    assert len(warnings) == (1 if warned else 0)
    assert warned in "".join(warnings)
