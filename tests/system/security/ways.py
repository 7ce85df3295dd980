"""Settings for every way to connect to the secured broker."""

from __future__ import annotations

from typing import Any

from tests.kafka.secured import KEY_PASSWORD, PASSWORDS, SecuredCluster


def tls(secured: SecuredCluster) -> dict[str, Any]:
    return {"security_protocol": "SSL", "ssl_ca_location": str(secured.certificates.ca)}


def login(mechanism: str) -> dict[str, Any]:
    return {"sasl_mechanism": mechanism, "sasl_username": "alice", "sasl_password": PASSWORDS["alice"]}


def of(secured: SecuredCluster, way: str) -> dict[str, Any]:
    """The settings of [kafka] for this way to connect."""
    files = secured.certificates
    listener, settings = {
        "TLS": ("TLS", tls(secured)),
        "mTLS": (
            "MTLS",
            tls(secured)
            | {
                "ssl_certificate_location": str(files.certificate("client")),
                "ssl_key_location": str(files.key("client-encrypted")),
                "ssl_key_password": KEY_PASSWORD,
            },
        ),
        "misnamed": ("MISNAMED", tls(secured) | {"ssl_endpoint_identification_algorithm": "none"}),
        "PLAIN": ("LOGIN", {"security_protocol": "SASL_PLAINTEXT", **login("PLAIN")}),
        "SCRAM-SHA-256": ("SECURE", tls(secured) | {"security_protocol": "SASL_SSL", **login("SCRAM-SHA-256")}),
        "SCRAM-SHA-512": ("LOGIN", {"security_protocol": "SASL_PLAINTEXT", **login("SCRAM-SHA-512")}),
    }[way]
    return {"bootstrap_servers": [secured.server(listener)], **settings}
