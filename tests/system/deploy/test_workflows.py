"""Workflows of a public forge: linted by its own linter, and what they use is what was looked at."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests import matrix, pythons
from tests.deploy.actionlint import ActionlintUnavailable, actionlint

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
IDS = [file.name for file in WORKFLOWS]
_MOST_CHARACTERS_OF_NOTES = 125_000
SPOILT = """
on: push
jobs:
  one:
    runs-on: ubuntu-latest
    steps:
      - run: echo ${{ no.such.thing }}
"""


def linted(*files: Path) -> subprocess.CompletedProcess[str]:
    try:
        command = actionlint()
    except ActionlintUnavailable as error:
        pytest.skip(str(error))
    # Linters of shell and of Python would be run where the machine has them, and nowhere else.
    return subprocess.run(
        [command, "-no-color", "-shellcheck=", "-pyflakes=", *files], capture_output=True, text=True, check=False
    )


def test_there_is_one_for_each_thing_that_a_change_or_a_release_needs() -> None:
    assert {file.stem for file in WORKFLOWS} == {"lint", "test", "matrix", "image", "chart", "release", "columns"}


def test_no_workflow_has_lint() -> None:
    done = linted(*WORKFLOWS)
    assert done.returncode == 0, done.stdout


def test_lint_is_found(tmp_path: Path) -> None:
    (tmp_path / "spoilt.yml").write_text(SPOILT)
    assert 'undefined variable "no"' in linted(tmp_path / "spoilt.yml").stdout


@pytest.mark.parametrize("file", WORKFLOWS, ids=IDS)
def test_paths_are_of_a_branch_as_tags_alone_leave_out_every_push_to_one(file: Path) -> None:
    # YAML takes `on` for true.
    push = (yaml.safe_load(file.read_text())[True] or {}).get("push") or {}
    assert "branches" in push or not {"tags", "paths"} <= push.keys()


@pytest.mark.parametrize("file", WORKFLOWS, ids=IDS)
def test_actions_are_pinned_by_commit_and_say_which_version_that_is(file: Path) -> None:
    used = re.findall(r"uses: (.+)$", file.read_text(), re.MULTILINE)
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


@pytest.mark.parametrize("file", WORKFLOWS, ids=IDS)
def test_a_job_may_read_and_write_nothing_unless_it_says_so_and_has_an_end(file: Path) -> None:
    text = file.read_text()
    assert "\npermissions: { contents: read }\n" in text
    assert text.count("runs-on:") == text.count("timeout-minutes:")


@pytest.mark.parametrize("file", WORKFLOWS, ids=IDS)
def test_what_is_made_and_run_is_there(file: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", file.read_text())) <= targets
    assert [name for name in re.findall(r"tests/\S+\.py", file.read_text()) if not (ROOT / name).exists()] == []


def test_the_pythons_are_those_that_are_supported() -> None:
    named = {file.stem: re.findall(r"\b3\.\d\d\b", file.read_text()) for file in WORKFLOWS}
    assert set(named["test"]) == set(pythons.SUPPORTED)
    assert set(named["matrix"]) - {"3.13"} >= set(matrix.PYTHONS) - {"3.13"}


def test_what_a_release_publishes_says_what_it_is_made_of_and_by_whom() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    (build,) = (step["with"] for step in jobs["image"]["steps"] if "build-push-action" in step.get("uses", ""))
    assert (build["sbom"], build["provenance"]) == (True, "mode=max")
    told = dict(line.split("=", 1) for line in build["labels"].splitlines())
    assert {name.removeprefix("org.opencontainers.image.") for name in told} == {
        "version",
        "revision",
        "source",
        "licenses",
    }
    for name in ("dist", "image", "chart"):
        scripts = [step.get("run", "") for step in jobs[name]["steps"]]
        assert any(re.search(r"\bcosign sign(-blob)? --yes", script) for script in scripts), name
    assert any("sbom-action" in step.get("uses", "") for step in jobs["dist"]["steps"])
    assert any("attest-build-provenance" in step.get("uses", "") for step in jobs["dist"]["steps"])


def test_a_release_s_notes_are_not_longer_than_the_forge_takes() -> None:
    (script,) = re.findall(r"gh release create.*?env:", (ROOT / ".github/workflows/release.yml").read_text(), re.DOTALL)
    files = re.findall(r"--notes-file (\S+)", script)
    assert [name for name in files if len((ROOT / name).read_text()) > _MOST_CHARACTERS_OF_NOTES] == []
    assert files or "--notes " in script


def test_every_image_that_is_built_says_what_it_is() -> None:
    (labels,) = re.findall(r"^LABEL (.*?[^\\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE | re.DOTALL)
    told = dict(re.findall(r'org\.opencontainers\.image\.([\w.]+)="([^"]+)"', labels))
    assert set(told) == {"title", "description", "licenses", "base.name"}
    stages = re.findall(r"^FROM (\w+)\S* AS (\w+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert {name for base, name in stages if base == "runtime"} == {"service", "arrow", "pipeline"}
