"""No secret is anywhere that people, scrapers or other processes look."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.kafka.secured import KEY_PASSWORD, PASSWORDS, SecuredCluster
from tests.system.procfs import living_in_session
from tests.system.scene import Scene

SECRETS = (PASSWORDS["alice"], KEY_PASSWORD, "distinctive")


def test_secrets_from_files_show_up_nowhere(
    secured: SecuredCluster, scene: Callable[..., Scene], tmp_path: Path
) -> None:
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
