"""The README's five minutes, in its own words: its files and its commands, beside a real broker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.kafka import KafkaCluster
from tests.system.members import free_port
from tests.waiting import wait_until

README = Path(__file__).parents[2] / "README.md"
FILES = ("shop/handlers.py", "config.toml", "produce.py")


def written(directory: Path, bootstrap: str) -> str:
    """Put the section's files where it says; the section."""
    section = README.read_text().partition("## Your own handler")[2].partition("\n## ")[0]
    blocks = {
        re.split(r"[:\s]", body[2:], maxsplit=1)[0]: body for body in re.findall(r"```\w+\n(#.*?)```", section, re.S)
    }
    for name in FILES:
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(blocks[name].replace("127.0.0.1:9092", bootstrap))
    return section


def test_a_newcomer_gets_from_nothing_to_a_handler_of_their_own(kafka: KafkaCluster, tmp_path: Path) -> None:
    section = written(tmp_path, kafka.bootstrap)
    port = free_port()
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(README.parent / "service"), os.environ.get("PYTHONPATH")])),
        "KUNICORN_HTTP__PORT": str(port),
        "PYTHONUNBUFFERED": "1",
    }

    def do(command: str) -> subprocess.CompletedProcess[str]:
        assert command in section, "the README says something else"
        return told(command)

    def told(command: str, *more: str) -> subprocess.CompletedProcess[str]:
        arguments = command.replace("kunicorn", "-m kunicorn").split()[0 if "kunicorn" in command else 1 :]
        return subprocess.run(
            [sys.executable, *arguments, *more],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=environ,
            timeout=90,
        )

    assert do("python produce.py").returncode == 0
    checked = do("kunicorn check --try 5")
    assert checked.returncode == 0, checked.stdout
    assert "5 records handled" in checked.stdout
    assert "kunicorn run --reload" in section
    log = tmp_path / "log"
    with log.open("wb") as output:
        service = subprocess.Popen(
            [sys.executable, "-m", "kunicorn", "run", "--reload"],
            cwd=tmp_path,
            env=environ,
            stdout=output,
            stderr=output,
        )
        try:
            # Several processes write to one file: lines are counted by the service, not here.
            wait_until(lambda: '"records": 1000' in told("kunicorn status", "--json").stdout, "1000 orders", 60)
            assert "stable" in do("kunicorn status").stdout
            wait_until(lambda: re.search(r"orders +8 +0 ", do("kunicorn lag").stdout), "no lag", 30)
            plan = do("kunicorn offsets reset --to-earliest")
            assert "1,000 offsets would be handled again" in plan.stdout
            service.send_signal(signal.SIGINT)
            assert service.wait(40) == 0
            # Not before: what a handler prints to a file is written in blocks.
            assert "orders 0 0 " in log.read_text()
        finally:
            service.kill()
            service.wait(10)
