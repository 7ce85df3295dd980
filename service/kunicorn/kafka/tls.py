"""TLS: the context that connections are made with, and what a failed handshake means, in words that name the
setting.
"""

from __future__ import annotations

import _ssl
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kunicorn.errors import ConfigError, PeerError
from kunicorn.kafka.errors import AuthenticationFailed, ConnectionLost


def _no_password() -> None:
    """Of a key that is not encrypted."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of PEM files, by the settings' names without `ssl_`: whom to trust, and our own certificate."""

    ca_location: str | None = None
    """A file, or a directory of hashed files; None: the system's own."""
    certificate_location: str | None = None
    key_location: str | None = None
    key_password: Callable[[], str | None] = field(default=_no_password, repr=False)
    """Called for each context whose key is encrypted: the key and its password may be renewed. May block on the disk,
    and raise `ConfigError`."""
    verify_hostname: bool = True


def context(tls: Tls) -> ssl.SSLContext:
    """TLS 1.2 or later, the broker's certificate always verified. Raises `ConfigError` naming the setting at fault.

    Blocks on the disk.
    """
    ca = tls.ca_location
    try:
        directory = ca is not None and Path(ca).is_dir()
        made = ssl.create_default_context(cafile=None if directory else ca, capath=ca if directory else None)
    except (OSError, ValueError) as error:
        raise ConfigError(f"kafka.ssl_ca_location = {ca!r} holds no CA certificates in PEM: {why(error)}") from error
    # As librdkafka, which workers connect with: strict, the default from Python 3.13 on, refuses the usual home-made
    # CA, one without a key usage, and a group's workers would reach brokers that its supervisor does not.
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.check_hostname = tls.verify_hostname
    if tls.certificate_location is not None:
        _identify(made, tls, tls.certificate_location)
    return made


def _identify(made: ssl.SSLContext, tls: Tls, certificate: str) -> None:
    """Present our own certificate. Without a password given, OpenSSL would ask for it at the terminal, and wait."""
    try:
        made.load_cert_chain(certificate, tls.key_location, password=lambda: tls.key_password() or "")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"kafka.ssl_certificate_location = {certificate!r} and kafka.ssl_key_location = {tls.key_location!r} "
            f"are not a certificate and its key in PEM ({why(error)}); where the key is encrypted, "
            f"check kafka.ssl_key_password"
        ) from error


def ends(setting: str, certificate: str) -> float:
    """When the first certificate of that setting's file ends, in seconds since 1970. Raises `ConfigError`. Blocks on
    the disk.

    By the decoder that Python tests its own ssl module with: it is there in every version, and a package that reads
    certificates would be the service's largest.
    """
    try:
        told = _ssl._test_decode_cert(certificate)  # type: ignore[attr-defined]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{setting} = {certificate!r} is no certificate in PEM: {why(error)}") from error
    return float(ssl.cert_time_to_seconds(str(told["notAfter"])))


def why(error: Exception) -> str:
    """OpenSSL's reason, or the system's, in a few words."""
    reason = getattr(error, "reason", None)
    return str(reason or getattr(error, "strerror", None) or error)


_VERIFICATION: Mapping[int, str] = {
    10: "it has expired: have the broker's certificate renewed",
    9: "it is not valid yet: compare the clocks, or have the broker's certificate corrected",
    18: "it is self-signed: set kafka.ssl_ca_location to it, if it is to be trusted",
    19: "its CA is not trusted: set kafka.ssl_ca_location to the CA that signed it",
    20: "its CA is not trusted: set kafka.ssl_ca_location to the CA that signed it",
    21: "its CA is not trusted: set kafka.ssl_ca_location to the CA that signed it",
    62: "it is for other names: use one of them in kafka.bootstrap_servers and in the brokers' advertised.listeners, "
    'or set kafka.ssl_endpoint_identification_algorithm = "none"',
    64: "it is for other addresses: use the name that it is for in kafka.bootstrap_servers and in the brokers' "
    'advertised.listeners, or set kafka.ssl_endpoint_identification_algorithm = "none"',
}
"""What OpenSSL found (x509_vfy.h) and what to do."""

_ALERTS: Mapping[str, str] = {
    "CERTIFICATE_REQUIRED": "wants a certificate of ours: set kafka.ssl_certificate_location and ssl_key_location",
    "UNKNOWN_CA": "does not trust the CA of our certificate: correct kafka.ssl_certificate_location",
    "BAD_CERTIFICATE": "refuses our certificate, or that there is none: correct kafka.ssl_certificate_location and "
    "kafka.ssl_key_location",
    "CERTIFICATE_EXPIRED": "refuses our certificate as expired: renew the one at kafka.ssl_certificate_location",
    "CERTIFICATE_REVOKED": "refuses our certificate as revoked: replace the one at kafka.ssl_certificate_location",
    "CERTIFICATE_UNKNOWN": "refuses our certificate: correct kafka.ssl_certificate_location",
    "UNSUPPORTED_CERTIFICATE": "refuses our certificate as of a kind that it does not take: correct "
    "kafka.ssl_certificate_location",
    "HANDSHAKE_FAILURE": "shares no cipher with us, or wants a certificate: set kafka.ssl_certificate_location",
    "PROTOCOL_VERSION": "speaks no TLS version from 1.2 on: have it enabled there (ssl.enabled.protocols)",
}
"""TLS alerts from the broker by the end of OpenSSL's reason, and what to do."""


def explained(error: Exception, name: str, address: str) -> PeerError:
    """Meaning of a failed handshake; `name` is what the certificate was compared with."""
    if isinstance(error, ssl.SSLCertVerificationError):
        what = _VERIFICATION.get(error.verify_code, f"{error.verify_message}; check kafka.ssl_ca_location")
        return AuthenticationFailed(
            f"{address} has a certificate that does not verify for {name!r} ({error.verify_message}): {what}"
        )
    if isinstance(error, ssl.SSLError) and (refusal := refused_by_alert(error, address)) is not None:
        return refusal
    reason = f": {why(error)}" if str(error) else ""
    return ConnectionLost(
        f"{address} ended the TLS handshake{reason}; if it always does, its listener does not speak TLS: "
        f"check kafka.security_protocol and the port"
    )


def refused_by_alert(error: Exception, address: str) -> AuthenticationFailed | None:
    """The broker's complaint about our certificate; None for any other failure.

    In TLS 1.3 the server judges the client after the handshake, so this may meet the first request instead.
    """
    reason = str(getattr(error, "reason", None) or "").upper()
    if "ALERT" not in reason:
        return None
    what = next((text for end, text in _ALERTS.items() if reason.endswith(end)), None)
    return None if what is None else AuthenticationFailed(f"{address} {what} (TLS: {reason.lower()})")
