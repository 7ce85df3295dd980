"""What a release consists of says the same everywhere: one version, one licence, and nothing that is not there."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from kunicorn import __version__
from kunicorn.handler.extras import install_extra
from tests.system.pipeline.versions import VERSIONS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGES = ["README.md", "docs/install.md", "docs/compatibility.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]


def slug(heading: str) -> str:
    """The anchor that forges make of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)}


def test_the_package_and_the_chart_have_the_version_of_the_code() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    assert "version" in PROJECT["dynamic"]
    chart = (ROOT / "deploy/helm/Chart.yaml").read_text()
    assert re.findall(r'^(?:version|appVersion): "?([^"\n]*)"?$', chart, re.MULTILINE) == [__version__] * 2


def test_the_charts_icon_is_the_status_pages_and_its_home_is_the_forges_to_tell() -> None:
    chart = yaml.safe_load((ROOT / "deploy/helm/Chart.yaml").read_text())
    kind, _, icon = chart["icon"].partition(";base64,")
    assert kind == "data:image/svg+xml"
    assert base64.b64decode(icon) == (ROOT / "service/kunicorn/observe/icon.svg").read_bytes()
    assert "home" not in chart, "there is no public address yet"
    assert "deploy/helm/Chart.yaml" in told_to_the_chart()


def told_to_the_chart() -> str:
    """The script by which the release's workflow tells the chart where it is published."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    return str(next(step["run"] for step in jobs["chart"]["steps"] if step.get("name") == "Where it is at home"))


def test_the_chart_that_is_published_has_the_images_that_are_published_beside_it(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy/helm", tmp_path / "deploy/helm")
    forge = {"GITHUB_SERVER_URL": "https://forge.example", "GITHUB_REPOSITORY": "Shop/Kunicorn"}
    subprocess.run(["bash", "-ec", told_to_the_chart()], cwd=tmp_path, env={**os.environ, **forge}, check=True)
    ours, published = (yaml.safe_load((home / "deploy/helm/values.yaml").read_text()) for home in (ROOT, tmp_path))
    assert published.pop("image") == {**ours.pop("image"), "repository": "ghcr.io/shop/kunicorn"}
    assert published == ours
    chart = yaml.safe_load((tmp_path / "deploy/helm/Chart.yaml").read_text())
    address = "https://forge.example/Shop/Kunicorn"
    assert (chart["home"], chart["sources"]) == (address, [address])


def test_no_version_is_written_into_the_dockerfile_by_hand() -> None:
    labels = re.findall(r'image\.version["\']?=["\']?([^"\'\s\\]+)', (ROOT / "Dockerfile").read_text())
    assert [label for label in labels if not label.startswith("$") and label != __version__] == []


def test_the_changelog_tells_both_kinds_of_reader_what_comes_next() -> None:
    newest = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]
    assert re.findall(r"^### (.+)$", newest, re.MULTILINE) == ["For handlers", "For operators"]


def test_the_licence_is_in_the_package_and_is_the_one_that_is_said() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert PROJECT["license-files"] == ["LICENSE"]
    assert "Apache License\n                           Version 2.0" in (ROOT / "LICENSE").read_text()


def test_no_address_is_named_before_there_is_one() -> None:
    assert "urls" not in PROJECT


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_links_is_there(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / page).parent / name if name else ROOT / page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_what_contributors_are_told_to_open_and_to_make_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    places = (ROOT, ROOT / "service" / "kunicorn")
    named = re.findall(r"`([\w./-]+\.(?:py|md|toml|json))`", text)
    siblings = {"handler.py", "sections.py", "cli_group.py"}  # They stand behind the directory that was just named.
    missing = [name for name in named if not any((place / name).exists() for place in places) and name not in siblings]
    assert missing == []
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)`", text)) <= targets


def test_the_demo_installs_what_the_service_needs_and_tests_install_what_they_need() -> None:
    def done_by(target: str) -> str:
        told = subprocess.run(["make", "-n", "-B", target], cwd=ROOT, capture_output=True, text=True, check=True)
        return told.stdout

    assert set(re.findall(r"-r (\S+\.lock)", done_by("demo"))) == {"requirements.lock"}
    assert set(re.findall(r"-r (\S+\.lock)", done_by("test-fast"))) == {"requirements-dev.lock"}


def test_what_only_an_extra_brings_is_not_locked_for_the_service() -> None:
    locked = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    extras = {re.split(r"[\[<>=]", each)[0] for needs in PROJECT["optional-dependencies"].values() for each in needs}
    assert locked & extras == {"attrs", "crc32c"}  # aiohttp and kio need them, too.


BY_NAME = re.compile(
    # The bare name, an extra or a placeholder behind it or not: in an installer's command, or as a requirement.
    r"\b(?:pip3?|uvx?|pipx|poetry|pdm)(?: [\w=./:+-]+)*? "
    r"['\"]?kunicorn(?:\[[^\]\n]*\])?(?:[=<>~!]=?[\w.{}*]+)?['\"`\s)]"
    r"|^ *kunicorn(?:\[[^\]\n]*\])? *[=<>~!]=",
    re.MULTILINE,
)
PUBLIC_INDEX = re.compile(r"\bpypi\.org|\bpypi\.python\.org|--extra-index-url [^a-z]*http", re.IGNORECASE)


@pytest.mark.parametrize(
    "told",
    [
        "pip install 'kunicorn[tracing]'",
        "RUN pip install --no-cache-dir kunicorn==0.2.0\n",
        "RUN pip install --no-cache-dir 'kunicorn[schema-registry]'",
        "raise ConfigError(f\"pip install 'kunicorn[{extra}]'\")",
        "uv add kunicorn",
        "uvx kunicorn demo",
        "pipx run kunicorn demo",
        "uv run --with kunicorn kunicorn demo",
        "kunicorn[delta]>=0.2",
    ],
)
def test_a_name_that_anybody_may_register_is_found(told: str) -> None:
    assert BY_NAME.search(f"{told}\n")


@pytest.mark.parametrize(
    "told",
    [
        "pip install './kunicorn-0.2.0-py3-none-any.whl[tracing]'",
        "my-shop/.venv/bin/pip install ./kunicorn",
        "pip install './kunicorn[pipeline]'",
        "kunicorn @ https://files.example.com/kunicorn-0.2.0-py3-none-any.whl#sha256=…",
        "helm install orders deploy/helm",
    ],
)
def test_a_file_or_a_url_is_not(told: str) -> None:
    assert not BY_NAME.search(f"{told}\n")


def test_nobody_is_told_to_install_a_name_from_an_index_that_anybody_may_register() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    kinds = (".md", ".py", ".toml", ".yaml", ".yml", ".tpl", ".txt", ".json", ".lock", ".sh", "Dockerfile", "Makefile")
    files = [file for name in tracked if name.endswith(kinds) and (file := ROOT / name).exists()]
    assert len(files) > 500
    found = {
        str(file.relative_to(ROOT)): words[0]
        for file in files
        if file != Path(__file__) and (words := BY_NAME.search(text := file.read_text()) or PUBLIC_INDEX.search(text))
    }
    assert found == {}


def test_the_page_tells_of_every_extra_and_of_the_wheel_of_this_version() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    assert set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)) == PROJECT["optional-dependencies"].keys()
    assert set(re.findall(r"kunicorn-(\d[\d.]*\d)-py3", page)) == {__version__}
    assert f"kunicorn-{__version__}-py3-none-any.whl[pipeline,delta]" in install_extra("pipeline", "delta")


def test_each_spark_on_which_jobs_are_tried_has_a_lock_that_is_made_with_the_others() -> None:
    (sparks,) = re.findall(r"^SPARKS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert tuple(sparks.split()) == VERSIONS
    locked = {
        version
        for lock in ROOT.glob("requirements-pipeline-*.lock")
        for version in re.findall(r"^pyspark==(\S+)", lock.read_text(), re.MULTILINE)
    }
    assert locked == set(VERSIONS)


@pytest.mark.parametrize("lock", sorted(ROOT.glob("requirements-pipeline-*.lock")), ids=lambda file: file.name)
def test_a_lock_for_a_spark_differs_from_the_one_that_tests_run_by_spark_alone(lock: Path) -> None:
    def pins(file: Path) -> dict[str, str]:
        return dict(re.findall(r"^([\w.-]+)==(\S+)", file.read_text(), re.MULTILINE))

    own, common = pins(lock), pins(ROOT / "requirements-pipeline.lock")
    assert own.pop("pyspark") in {each for each in VERSIONS if lock.stem.endswith(f"-{each.rpartition('.')[0]}")}
    assert common.pop("pyspark")
    assert (own.pop("py4j"), own) == (common.pop("py4j"), common)


@pytest.mark.parametrize(
    "file", [*sorted((ROOT / ".github/workflows").glob("*.yml")), ROOT / "Dockerfile"], ids=lambda file: file.name
)
def test_no_lock_constrains_a_name_as_pip_refuses_one_without_a_version_beside_hashes(file: Path) -> None:
    assert re.findall(r"pip install\b.*(?: -c|--constraint)[ =]\S+\.lock.*", file.read_text()) == []


@pytest.mark.parametrize("lock", sorted(ROOT.glob("requirements*.lock")), ids=lambda file: file.name)
def test_each_locked_package_is_pinned_by_version_and_hash(lock: Path) -> None:
    packages = re.findall(r"^[a-z0-9].*$", lock.read_text(), re.MULTILINE)
    assert packages
    pinned = re.findall(r"^[\w.-]+==\S+(?: ;.*)? \\\n    --hash=sha256:[0-9a-f]{64}", lock.read_text(), re.MULTILINE)
    assert len(pinned) == len(packages)
