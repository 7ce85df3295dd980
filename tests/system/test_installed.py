"""What `make dist` makes, installed into an empty environment outside of the checkout, and used from there."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from kunicorn import __version__
from tests.kafka import KafkaCluster
from tests.system.members import group_settings, merged, toml
from tests.system.pipeline.desk import QUICK_START
from tests.system.producing import produce

ROOT = Path(__file__).parents[2]
BARE = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
"""Of this process's environment nothing that leads back to the checkout."""
# Spark is four hundred megabytes.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
HANDLER = """
def handle(record):
    print("handled", record.offset, flush=True)
"""

DECODES = """
import pyarrow
from kunicorn.columns.decoding import compiled
decoder = compiled()(read_committed=True, max_unpacked=1000)
rows = pyarrow.record_batch(decoder.decode(bytes(13), 17).rows)
print(len(rows), *rows.schema.names)
"""


def done(*command: str | Path, cwd: Path, within: float = 300) -> str:
    """What the command says on both streams; it must succeed."""
    told = subprocess.run(
        list(map(str, command)), cwd=cwd, env=BARE, capture_output=True, text=True, timeout=within, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout + told.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the wheel and the archive, built from what git knows and nothing beside it."""
    place = tmp_path_factory.mktemp("dist")
    done(sys.executable, "-m", "build", "--outdir", place, ROOT, cwd=place)
    return place


@pytest.fixture(scope="module")
def wheel(made: Path) -> Path:
    """The wheel."""
    (found,) = made.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(made: Path, wheel: Path) -> Path:
    """The commands of an environment that has the wheel and the packages that it needs."""
    venv.create(made / "empty", with_pip=True)
    commands = made / "empty" / "bin"
    done(commands / "pip", "install", "-q", "-r", ROOT / "requirements.lock", cwd=made)
    # What the lock lacks would be fetched now: there is no index.
    done(commands / "pip", "install", "-q", "--no-index", wheel, cwd=made)
    place = done(commands / "python", "-c", "import kunicorn; print(kunicorn.__file__)", cwd=made)
    assert Path(place.strip()).is_relative_to(made / "empty")
    return commands


@pytest.fixture
def desk(tmp_path: Path, kafka: KafkaCluster, topic: str) -> Path:
    """A directory of somebody's own: a handler, settings, and a topic with records in it."""
    kafka.create_topic(topic, 2)
    produce(kafka.bootstrap, topic, 200, value=b"x")
    (tmp_path / "shop.py").write_text(HANDLER)
    pipeline = {"pipeline": {"directory": str(tmp_path / "runs"), "spark": QUICK_START}}
    own = group_settings(kafka.bootstrap, [topic], topic, "shop:handle")
    settings = merged(own, pipeline, {"http": {"port": 0}, "log": {"format": "text"}})
    (tmp_path / "config.toml").write_text(toml(settings))
    return tmp_path


def test_the_wheel_is_for_every_platform_and_says_what_it_is(wheel: Path) -> None:
    assert wheel.name == f"kunicorn-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        about = email.message_from_bytes(content.read(f"kunicorn-{__version__}.dist-info/METADATA"))
    assert (about["Version"], about["License-Expression"]) == (__version__, "Apache-2.0")
    assert f"kunicorn-{__version__}.dist-info/licenses/LICENSE" in names
    assert {"kunicorn/py.typed", "kunicorn/observe/page.html", "kunicorn/observe/icon.svg"} <= set(names)
    sources = {str(file.relative_to(ROOT / "service")) for file in (ROOT / "service").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources


def test_the_archive_has_what_the_wheel_is_built_from(made: Path) -> None:
    with tarfile.open(made / f"kunicorn-{__version__}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "service/kunicorn/__init__.py"} <= names


def test_the_demo_runs_where_there_is_no_checkout(installed: Path, tmp_path: Path) -> None:
    assert "every promise kept" in done(installed / "kunicorn", "demo", "--seconds", "5", cwd=tmp_path)


def test_a_handler_of_ones_own_is_checked_and_its_group_runs(installed: Path, desk: Path) -> None:
    checked = done(installed / "kunicorn", "check", "--try", "5", cwd=desk)
    assert "5 records handled" in checked
    ran = done(installed / "kunicorn", "run", "--until-end", cwd=desk)
    assert len(re.findall(r"^handled \d+$", ran, re.MULTILINE)) == 200


def test_the_pipeline_says_which_extra_it_needs_and_runs_with_it(installed: Path, wheel: Path, desk: Path) -> None:
    backfill: list[str | Path] = [
        installed / "kunicorn",
        "pipeline",
        "backfill",
        "--master",
        "local[2]",
        "--from",
        "2h",
        "--run",
        "one",
    ]
    refused = subprocess.run(
        list(map(str, backfill)), cwd=desk, env=BARE, capture_output=True, text=True, timeout=240, check=False
    )
    assert refused.returncode == 2, refused.stderr
    assert f"{wheel.name}[pipeline]" in refused.stderr
    done(installed / "pip", "install", "-q", "-r", ROOT / "requirements-pipeline.lock", cwd=desk, within=600)
    done(installed / "pip", "install", "-q", "--no-index", f"{wheel}[pipeline]", cwd=desk)
    assert re.search(r"^handled\s+200 records", done(*backfill, cwd=desk), re.MULTILINE)


def test_the_wheel_of_columns_decodes_where_there_is_no_checkout(installed: Path, wheel: Path, tmp_path: Path) -> None:
    maturin = Path(sys.executable).parent / "maturin"
    build: list[str | Path] = [
        maturin,
        "build",
        "--quiet",
        "--release",
        "--manifest-path",
        ROOT / "service/columns/Cargo.toml",
    ]
    subprocess.run([*build, "--out", tmp_path], check=True, timeout=600)
    (columns,) = tmp_path.glob("kunicorn_columns-*-cp311-abi3-*.whl")
    done(installed / "pip", "install", "-q", "-r", ROOT / "requirements-arrow.lock", cwd=tmp_path)
    done(installed / "pip", "install", "-q", "--no-index", f"{wheel}[arrow]", columns, cwd=tmp_path)
    # Empty, of no session, about no topic: the header's tagged fields, then FetchResponse.
    told = done(installed / "python", "-c", DECODES, cwd=tmp_path)
    assert told.split() == ["0", "topic", "partition", "offset", "timestamp", "key", "value", "headers"]
