"""The TLS context: what it demands, and what is said of files that cannot be used."""

from __future__ import annotations

import contextlib
import shutil
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from kunicorn.errors import ConfigError
from kunicorn.kafka.errors import AuthenticationFailed, ConnectionLost
from kunicorn.kafka.tls import Tls, context, explained
from tests.kafka.certificates import Certificates, make_certificates


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"), "hunter2")


def client(files: Certificates, key: str = "client-encrypted", password: str | None = "hunter2") -> Tls:
    return Tls(str(files.ca), str(files.certificate("client")), str(files.key(key)), lambda: password)


def test_certificates_are_always_verified_and_old_protocols_refused(files: Certificates) -> None:
    made = context(Tls(str(files.ca)))
    assert (made.verify_mode, made.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert made.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_names_may_go_unchecked_but_never_the_ca(files: Certificates) -> None:
    made = context(replace(Tls(str(files.ca)), verify_hostname=False))
    assert (made.verify_mode, made.check_hostname) == (ssl.CERT_REQUIRED, False)


def test_a_ca_without_a_key_usage_will_do_on_every_python(files: Certificates, tmp_path: Path) -> None:
    plain = make_certificates(tmp_path, "hunter2", ca_extensions=())
    for made in (files, plain):
        shake_hands(context(Tls(str(made.ca))), made)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context(Tls(str(files.ca))), plain)


def shake_hands(ours: ssl.SSLContext, theirs: Certificates) -> None:
    """With a server that has their certificate, in memory. Raises what the client finds."""
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(theirs.certificate("server"), theirs.key("server"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ours.wrap_bio(to_client, to_server, server_hostname="localhost")
    server = there.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert client.version() == server.version() == "TLSv1.3"


def test_an_encrypted_key_is_opened_by_its_password(files: Certificates) -> None:
    context(client(files))


@pytest.mark.parametrize("password", [None, "wrong"])
def test_a_key_that_does_not_open_is_told_and_nobody_is_asked_at_the_terminal(
    files: Certificates, password: str | None
) -> None:
    with pytest.raises(ConfigError, match=r"kafka\.ssl_key_location = .*check kafka\.ssl_key_password"):
        context(client(files, password=password))


def test_the_key_of_another_certificate_is_refused(files: Certificates) -> None:
    with pytest.raises(ConfigError, match="are not a certificate and its key"):
        context(client(files, key="server", password=None))


def test_a_directory_of_cas_will_do(files: Certificates, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context(Tls(str(tmp_path))), files)
    told = ["openssl", "x509", "-hash", "-noout", "-in", str(files.ca)]
    name = subprocess.run(told, capture_output=True, text=True, check=True).stdout.strip()
    shutil.copy(files.ca, tmp_path / f"{name}.0")
    shake_hands(context(Tls(str(tmp_path))), files)


def test_a_description_of_tls_shows_no_password(files: Certificates) -> None:
    assert "hunter2" not in repr(client(files))


def alert(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (alert("TLSV13_ALERT_CERTIFICATE_REQUIRED"), AuthenticationFailed, "wants a certificate of ours"),
        (alert("TLSV1_ALERT_UNKNOWN_CA"), AuthenticationFailed, "does not trust the CA of our certificate"),
        (alert("SSLV3_ALERT_CERTIFICATE_EXPIRED"), AuthenticationFailed, "as expired"),
        (alert("TLSV1_ALERT_INTERNAL_ERROR"), ConnectionLost, "check kafka.security_protocol"),
        (alert("WRONG_VERSION_NUMBER"), ConnectionLost, "check kafka.security_protocol"),
        (ConnectionResetError(), ConnectionLost, "check kafka.security_protocol"),
    ],
)
def test_a_broken_handshake_is_told_by_its_cause(error: Exception, kind: type[Exception], text: str) -> None:
    told = explained(error, "kafka-1", "10.0.0.1:9093")
    assert type(told) is kind
    assert text in str(told)
    assert "10.0.0.1:9093" in str(told)
