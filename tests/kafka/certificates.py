"""Certificates for tests, made with openssl: a CA, what it signed, and a CA that nobody trusts."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


@dataclass(frozen=True)
class Certificates:
    """PEM files. `*_both` hold key and certificate, as Kafka's PEM keystores want them."""

    directory: Path

    @property
    def ca(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def other_ca(self) -> Path:
        return self.directory / "other-ca.pem"

    def certificate(self, name: str) -> Path:
        return self.directory / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.directory / f"{name}.key"

    def both(self, name: str) -> Path:
        return self.directory / f"{name}-both.pem"

    def sign_client(self, name: str) -> None:
        """One more client of the CA."""
        _sign(self.directory, name, "ca", "extendedKeyUsage=clientAuth")


def make_certificates(
    directory: Path,
    key_password: str,
    ca_extensions: Sequence[str] = ("keyUsage=critical,keyCertSign,cRLSign",),
    host: str = "127.0.0.1",
) -> Certificates:
    """`server` for `host` and localhost, `misnamed` for another host, `client` (its key also encrypted, as
    `client-encrypted`) and `stranger`, a client of the other CA."""
    made = Certificates(directory)
    for ca in ("ca", "other-ca"):
        _openssl(directory, "req", "-x509", *_KEY, "-noenc", "-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-days", "2",
                 "-subj", f"/CN=kunicorn-{ca}",
                 *(part for each in ca_extensions for part in ("-addext", each)))  # fmt: skip
    _sign(directory, "server", "ca", f"subjectAltName=DNS:localhost,IP:{host}")
    _sign(directory, "misnamed", "ca", "subjectAltName=DNS:kafka.example.com")
    _sign(directory, "client", "ca", "extendedKeyUsage=clientAuth")
    _sign(directory, "stranger", "other-ca", "extendedKeyUsage=clientAuth")
    _openssl(directory, "pkcs8", "-topk8", "-in", "client.key", "-out", "client-encrypted.key",
             "-passout", f"pass:{key_password}")  # fmt: skip
    return made


def _sign(directory: Path, name: str, ca: str, extension: str) -> None:
    _openssl(directory, "req", "-x509", *_KEY, "-noenc", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2",
             "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-subj", f"/CN={name}", "-addext", "basicConstraints=CA:FALSE",
             "-addext", extension)  # fmt: skip
    both = (directory / f"{name}.key").read_text() + (directory / f"{name}.pem").read_text()
    (directory / f"{name}-both.pem").write_text(both)


def _openssl(directory: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"openssl {' '.join(arguments)}:\n{done.stderr}"
