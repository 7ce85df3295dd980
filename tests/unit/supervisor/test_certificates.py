"""Certificates that are renewed while the service runs."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

from kunicorn.settings import KafkaSettings
from kunicorn.supervisor.credentials import ClientCertificate, watch_certificate
from tests.kafka.certificates import make_certificates
from tests.unit.settings.files import LEAST, loaded

DAY = 86_400


def settings(directory: Path) -> KafkaSettings:
    """TLS with the files that are mounted in `directory`."""
    lines = [
        'security_protocol = "SSL"',
        f'ssl_ca_location = "{directory / "ca.crt"}"',
        f'ssl_certificate_location = "{directory / "tls.crt"}"',
        f'ssl_key_location = "{directory / "tls.key"}"',
    ]
    return loaded(directory, LEAST.replace("[kafka]\n", "[kafka]\n" + "\n".join(lines) + "\n")).kafka


async def test_a_renewed_certificate_has_the_workers_replaced_and_half_of_one_does_not(tmp_path: Path) -> None:
    made = await asyncio.to_thread(make_certificates, _in(tmp_path, "made"), "secret")
    mounted = _in(tmp_path, "mounted")
    shutil.copy(made.ca, mounted / "ca.crt")
    shutil.copy(made.certificate("client"), mounted / "tls.crt")
    shutil.copy(made.key("client"), mounted / "tls.key")
    replaced: asyncio.Queue[None] = asyncio.Queue()
    told: asyncio.Queue[float] = asyncio.Queue()
    outcomes = [False, True, True]

    async def replace_workers() -> bool:
        replaced.put_nowait(None)
        return outcomes.pop(0)

    watching = asyncio.create_task(
        watch_certificate(ClientCertificate(settings(mounted), replace_workers), told.put_nowait, interval=0.01)
    )
    async with asyncio.timeout(30):
        assert DAY < await told.get() - time.time() < 3 * DAY
        shutil.copy(made.certificate("server"), mounted / "tls.crt")
        for _ in range(5):
            await told.get()
        assert replaced.empty(), "a certificate beside the key of another one"
        shutil.copy(made.key("server"), mounted / "tls.key")
        await replaced.get()
        await replaced.get()
        for _ in range(told.qsize() + 5):
            await told.get()
    assert outcomes == [True], "again after it failed, and not a third time"
    watching.cancel()


def _in(directory: Path, name: str) -> Path:
    made = directory / name
    made.mkdir()
    return made
