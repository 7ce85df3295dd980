"""Certificates that are renewed while the service runs."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from kunicorn.ipc import clock
from kunicorn.settings import KafkaSettings
from kunicorn.supervisor.credentials import ClientCertificate, watch_certificate
from tests.kafka.certificates import Certificates, make_certificates
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
    made, mounted = await _mounted(tmp_path)
    replaced: asyncio.Queue[float] = asyncio.Queue()
    told: asyncio.Queue[float] = asyncio.Queue()
    outcomes = [False, False, True, True]

    async def replace_workers(seen_at: float) -> bool:
        replaced.put_nowait(seen_at)
        return outcomes.pop(0)

    watching = asyncio.create_task(
        watch_certificate(ClientCertificate(settings(mounted), replace_workers), told.put_nowait, interval=0.01)
    )
    async with asyncio.timeout(60):
        assert DAY < await told.get() - time.time() < 3 * DAY
        shutil.copy(made.certificate("server"), mounted / "tls.crt")
        half = clock.now()
        for _ in range(5):
            await told.get()
        assert replaced.empty(), "a certificate beside the key of another one"
        shutil.copy(made.key("server"), mounted / "tls.key")
        await replaced.get()  # It may have begun while the key was being written.
        seen_at = await replaced.get()
        assert half < seen_at < clock.now(), "who has started since has read the new ones"
        assert await replaced.get() == seen_at
        for _ in range(told.qsize() + 5):
            await told.get()
    assert outcomes == [True], "again after it failed, and not a third time"
    watching.cancel()


async def test_a_ca_that_is_put_into_a_directory_of_cas_has_the_workers_replaced(tmp_path: Path) -> None:
    made, mounted = await _mounted(tmp_path)
    cas = _in(mounted, "cas")
    shutil.copy(made.ca, cas / "5ed36f99.0")
    (cas / "to-nothing.0").symlink_to(cas / "nothing")
    kafka = settings(mounted).model_copy(update={"ssl_ca_location": str(cas)})
    replaced, looks = asyncio.Event(), asyncio.Queue[float]()

    async def replace_workers(_: float) -> bool:
        replaced.set()
        return True

    watching = asyncio.create_task(
        watch_certificate(ClientCertificate(kafka, replace_workers), looks.put_nowait, interval=0.01)
    )
    async with asyncio.timeout(60):
        for _ in range(3):
            await looks.get()
        assert not replaced.is_set()
        shutil.copy(made.ca, cas / "0b1b94ef.0")
        await replaced.wait()
    watching.cancel()


async def test_a_file_that_cannot_be_read_for_a_moment_is_told_and_read_when_it_can_be(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made, mounted = await _mounted(tmp_path)
    key = mounted / "tls.key"
    replaced, looked = asyncio.Event(), asyncio.Event()

    async def replace_workers(_: float) -> bool:
        replaced.set()
        return True

    certificate = ClientCertificate(settings(mounted), replace_workers)
    watching = asyncio.create_task(watch_certificate(certificate, lambda _: looked.set(), interval=0.01))
    async with asyncio.timeout(60):
        await looked.wait()
        _make_unreadable(key)
        told = await _told_of_it(watching, capfd)
        assert not replaced.is_set()
        shutil.copy(made.certificate("server"), mounted / "tls.crt")
        shutil.copy(made.key("server"), _away(key))
        await replaced.wait()
    assert f"{key} cannot be read (Input/output error): let kunicorn's user read it" in told
    assert "cannot be read" not in capfd.readouterr().err, "once is enough"
    watching.cancel()


async def test_files_that_cannot_be_read_at_first_have_the_workers_replaced_once_they_can_be(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made, mounted = await _mounted(tmp_path)
    kafka, key = settings(mounted), mounted / "tls.key"
    _make_unreadable(key)
    replaced = asyncio.Event()

    async def replace_workers(_: float) -> bool:
        replaced.set()
        return True

    watching = asyncio.create_task(
        watch_certificate(ClientCertificate(kafka, replace_workers), lambda _: None, interval=0.01)
    )
    async with asyncio.timeout(60):
        await _told_of_it(watching, capfd)
        shutil.copy(made.key("client"), _away(key))
        await replaced.wait()
    watching.cancel()


async def _told_of_it(watching: asyncio.Task[None], capfd: pytest.CaptureFixture[str]) -> str:
    """What the log says, once it says that."""
    told = ""
    while "cannot be read" not in told:
        assert not watching.done(), watching.exception()
        await asyncio.sleep(0.01)
        told += capfd.readouterr().err
    return told


async def _mounted(tmp_path: Path) -> tuple[Certificates, Path]:
    """Certificates, and a directory with those of the client."""
    made = await asyncio.to_thread(make_certificates, _in(tmp_path, "made"), "secret")
    mounted = _in(tmp_path, "mounted")
    shutil.copy(made.ca, mounted / "ca.crt")
    shutil.copy(made.certificate("client"), mounted / "tls.crt")
    shutil.copy(made.key("client"), mounted / "tls.key")
    return made, mounted


def _make_unreadable(file: Path) -> None:
    """For root, too, whom no mode keeps out: the first page of a process is never there."""
    link = file.with_suffix(".new")
    link.symlink_to("/proc/self/mem")
    link.replace(file)


def _away(file: Path) -> Path:
    file.unlink()
    return file


def _in(directory: Path, name: str) -> Path:
    made = directory / name
    made.mkdir()
    return made
