"""The commands and values that README.md and docs/operations.md show for deploying, run as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.deploy.charts import CHART, EXAMPLE, HELMS, NEWER_BY_DAY, ROOT, Rendered, judged, template
from tests.deploy.runbooks import RUNBOOKS, commands
from tests.deploy.tools import Tools

OPERATIONS = ROOT / "docs" / "operations.md"
_INSTALL = re.compile(r"^helm install .*(?:\\\n.*)*", flags=re.MULTILINE)


def installs(page: Path) -> list[list[str]]:
    """Arguments of every `helm install` of a page, without its comments."""
    return [shlex.split(command, comments=True)[2:] for command in _INSTALL.findall(page.read_text())]


def values_of(page: Path, directory: Path) -> Path:
    """The values.yaml that a page shows, as a file in `directory`."""
    (shown,) = re.findall(r"^```yaml\n(# values\.yaml\n.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    file = directory / "values.yaml"
    file.write_text(shown)
    return file


def rendered(tools: Tools, helm: str, arguments: list[str], scratch: Path) -> Rendered:
    """What `helm install` with these arguments would send to the cluster, from the repository's directory."""
    given = [str(ROOT / each) if (ROOT / each).exists() else each for each in arguments]
    done = tools.run(helm, "template", *given)
    assert done.returncode == 0, done.stderr
    (release,) = judged(tools, done.stdout, scratch=scratch)
    return release


@pytest.mark.parametrize("helm", NEWER_BY_DAY)
def test_the_command_of_the_readme_installs_the_example_in_a_group_of_its_own(
    tools: Tools, helm: str, tmp_path: Path
) -> None:
    (arguments,) = installs(ROOT / "README.md")
    release = rendered(tools, helm, arguments, tmp_path)
    assert release.problems == []
    assert f"docker push {release.container()['image']}\n" in (ROOT / "README.md").read_text(), (
        "it runs what was pushed"
    )
    assert 'id = "kunicorn-example"' in release.config()
    assert 'topics = ["kunicorn-example"]' in release.config(), "nobody's records are handled by an example"


@pytest.mark.parametrize("helm", NEWER_BY_DAY)
def test_the_command_and_the_values_of_the_guide_make_a_release(tools: Tools, helm: str, tmp_path: Path) -> None:
    (arguments,) = installs(OPERATIONS)
    values = values_of(OPERATIONS, tmp_path)
    release = rendered(tools, helm, [str(values) if each == "values.yaml" else each for each in arguments], tmp_path)
    assert release.problems == []
    assert release.container()["image"] == "registry.example.com/shop/orders:2026.11.1"
    memory = release.container()["resources"]["requests"]["memory"]
    assert f"= {memory.removesuffix('Mi')} MiB" in OPERATIONS.read_text()


_BUILD = re.compile(r"^docker build .*-t (\S+)", flags=re.MULTILINE)


def test_each_image_of_the_guide_is_one_that_it_has_built(tools: Tools, tmp_path: Path) -> None:
    """Also that of a pipeline's pods, which begin with none but their own."""
    guide = OPERATIONS.read_text()
    built = set(_BUILD.findall(guide))
    based_on = set(re.findall(r"^FROM (registry\.\S+)", guide, flags=re.MULTILINE))
    asked = ("--set", "pipelines.nightly.command=export", "-s", "templates/pipelines.yaml")
    text = template(tools, "helm4", *asked, files=[values_of(OPERATIONS, tmp_path)])
    run_by_jobs = set(re.findall(r'image: "(\S+)"', text))
    assert based_on
    assert run_by_jobs
    assert based_on | run_by_jobs <= built


def test_every_values_that_the_guide_shows_are_accepted(tools: Tools, tmp_path: Path) -> None:
    blocks = re.findall(r"^ *```yaml\n(.*?)^ *```$", OPERATIONS.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len([block for block in blocks if "pipelines:" in block]) > 3
    values = tmp_path / "values.yaml"
    for block in blocks:
        values.write_text(block)
        assert template(tools, "helm4", files=[EXAMPLE, values]), block


LEAVE = re.compile(r"kunicorn leave .*--instance (\S+)")


@pytest.mark.parametrize("page", [OPERATIONS, RUNBOOKS / "switch-to-static.md"], ids=lambda page: page.stem)
def test_no_page_removes_a_static_member_whose_pod_may_still_run(page: Path) -> None:
    for block in re.findall(r"^ *```sh\n(.*?)^ *```$", page.read_text(), flags=re.MULTILINE | re.DOTALL):
        gone: set[str] = set()
        for line in block.splitlines():
            if "wait --for=delete" in line:
                gone |= set(re.findall(r"pod/(\S+)", line))
            if removed := LEAVE.search(line):
                assert removed[1] in gone, line
    assert LEAVE.search(page.read_text())


@pytest.mark.parametrize("helm", HELMS)
def test_every_upgrade_of_the_runbooks_makes_a_release_of_the_guides_values(
    tools: Tools, helm: str, tmp_path: Path
) -> None:
    """By both Helms: they differ in what becomes of a limit that an upgrade sets to null."""
    values = values_of(OPERATIONS, tmp_path)
    pages = sorted(file.stem for file in RUNBOOKS.glob("[!R]*.md"))
    lines = [line for page in pages for line in commands(page)[1] if line.startswith("helm -n shop upgrade ")]
    assert len(lines) > 5
    texts = []
    for line in lines:
        arguments = [str(values) if each == "values.yaml" else each for each in shlex.split(line)[4:]]
        given = [str(CHART) if each == "deploy/helm" else each for each in arguments]
        done = tools.run(helm, "template", *given)
        assert done.returncode == 0, (line, done.stderr)
        texts.append(done.stdout)
    for line, release in zip(lines, judged(tools, *texts, scratch=tmp_path), strict=True):
        assert release.problems == [], line
        amounts = [amount for kind in release.container()["resources"].values() for amount in kind.values()]
        assert None not in amounts, f"{line}: Kubernetes reads a limit that is null as 0"
