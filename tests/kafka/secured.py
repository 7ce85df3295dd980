"""A broker with a listener for every way to secure connections, and with access control."""

from __future__ import annotations

from pathlib import Path

from tests.kafka.access import ACCESS, Right, allow, forbid
from tests.kafka.certificates import Certificates, make_certificates
from tests.kafka.cluster import KafkaCluster

PASSWORDS = {"alice": "distinctive-tr0mbone", "bob": "distinctive-0cean", "carol": "distinctive-b4rley"}
"""The users of PLAIN and SCRAM. What they may do, tests say."""
KEY_PASSWORD = "distinctive-k3yring"
SESSION_MS = 6_000

LISTENERS = {
    "TLS": "SSL",
    "MTLS": "SSL",
    "MISNAMED": "SSL",
    "LOGIN": "SASL_PLAINTEXT",
    "SECURE": "SASL_SSL",
    "BRIEF": "SASL_SSL",
    "PLAINONLY": "SASL_PLAINTEXT",
}
"""By their protocol. Sessions on BRIEF last for `SESSION_MS`; MISNAMED has another host's certificate."""

_MODULE = "org.apache.kafka.common.security"
_MECHANISMS = {
    "plain": f"{_MODULE}.plain.PlainLoginModule required "
    + " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items())
    + ";",
    "scram-sha-256": f"{_MODULE}.scram.ScramLoginModule required;",
    "scram-sha-512": f"{_MODULE}.scram.ScramLoginModule required;",
    # Kafka's default validator believes unsigned tokens (OAuthBearerUnsecuredValidatorCallbackHandler).
    "oauthbearer": f'{_MODULE}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";',
}


class SecuredCluster(KafkaCluster):
    """One broker. Over PLAINTEXT, and over TLS without a certificate, everybody may do everything.

    All listeners but PLAINTEXT are on `host`, an address of this machine.
    """

    def __init__(self, workdir: Path, host: str = "127.0.0.1") -> None:
        scram = [
            f"--add-scram={mechanism}=[name={user},password={password}]"
            for user, password in PASSWORDS.items()
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        ]
        super().__init__(1, workdir, format_arguments=scram)
        directory = workdir / "certificates"
        directory.mkdir()
        self.certificates: Certificates = make_certificates(directory, KEY_PASSWORD, host=host)
        self._host = host
        self._ports = dict(zip(LISTENERS, self.ports.take(len(LISTENERS)), strict=True))
        self._overrides = {**self._listeners(), **self._tls(), **self._logins(), **ACCESS}

    def server(self, listener: str, host: str = "127.0.0.1") -> str:
        """The bootstrap server behind which this listener is."""
        return f"{host}:{self._ports[listener]}"

    def allow(self, who: str, *rights: Right) -> None:
        """Grant `User:<who>` these rights and nothing else."""
        allow(self, who, *rights)

    def forbid(self, user: str) -> None:
        """Take all its rights away."""
        forbid(self, user)

    def _listeners(self) -> dict[str, object]:
        node = self.brokers[0].node
        own = ",".join(f"{name}://{self._host}:{port}" for name, port in self._ports.items())
        protocols = ",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items())
        return {
            "listeners": f"PLAINTEXT://127.0.0.1:{node.port},CONTROLLER://127.0.0.1:{node.controller_port},{own}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{node.port},{own}",
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{protocols}",
        }

    def _tls(self) -> dict[str, object]:
        files = self.certificates
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": files.both("server"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": files.ca,
            "listener.name.misnamed.ssl.keystore.type": "PEM",
            "listener.name.misnamed.ssl.keystore.location": files.both("misnamed"),
            "listener.name.mtls.ssl.client.auth": "required",
        }

    def _logins(self) -> dict[str, object]:
        settings: dict[str, object] = {}
        for listener in ("login", "secure", "brief", "plainonly"):
            mechanisms = ["plain"] if listener == "plainonly" else list(_MECHANISMS)
            settings[f"listener.name.{listener}.sasl.enabled.mechanisms"] = ",".join(mechanisms).upper()
            for mechanism in mechanisms:
                settings[f"listener.name.{listener}.{mechanism}.sasl.jaas.config"] = _MECHANISMS[mechanism]
                if listener == "brief":
                    settings[f"listener.name.{listener}.{mechanism}.connections.max.reauth.ms"] = SESSION_MS
        return settings
