"""The plugin in a pytest of its own, and the examples of docs/testing.md as their readers would run them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "testing.md"


def pytest_in(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One that does not end says where its threads are."""
    path = os.pathsep.join([str(ROOT / "service"), str(directory)])
    pytest = ["pytest", "-p", "kunicorn.testing.plugin", "-p", "no:cacheprovider", "-q", *arguments]
    with subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", *pytest],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONWARNINGS": "error"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            said = process.communicate(timeout=200)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            said = process.communicate(timeout=240)
    return subprocess.CompletedProcess(process.args, process.returncode, *said)


def test_the_pages_examples_do_what_they_say(tmp_path: Path) -> None:
    blocks = re.findall(r"```(?:python|toml|ini)\n# (\S+)\n(.*?)```", PAGE.read_text(), re.S)
    assert len(blocks) > 5
    for name, body in blocks:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as written:
            written.write(body)
    done = pytest_in(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    tests = sum(body.count("def test_") for _, body in blocks)
    assert f"{tests} passed" in done.stdout


def test_a_config_that_pytest_names_and_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nkunicorn_config = nowhere.toml\n")
    (tmp_path / "test_it.py").write_text(
        "from kunicorn.testing import record\ndef test_it(kunicorn_handler):\n    kunicorn_handler().run(record('a'))\n"
    )
    done = pytest_in(tmp_path)
    assert done.returncode == 1
    assert "nowhere.toml" in done.stdout


def test_who_uses_the_fixture_without_naming_a_config_is_told_where_to(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(kunicorn_handler):\n    kunicorn_handler()\n")
    done = pytest_in(tmp_path)
    assert done.returncode == 1
    assert "pytest's fixture takes it from kunicorn_config in pytest.ini" in done.stdout


def test_only_the_plugin_imports_pytest(tmp_path: Path) -> None:
    program = "import sys, kunicorn.testing; sys.exit('pytest' in sys.modules and 'kunicorn.testing.harness' or None)"
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "service")}
    assert subprocess.run([sys.executable, "-c", program], check=False, env=environ, cwd=tmp_path).returncode == 0
