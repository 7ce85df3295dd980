"""What docs/clusters.md tells people to type and to write: kunicorn takes each command, which goes on with the run that
it began; no secret is in a command or in Spark's settings.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pyspark
import pytest
import typer
import yaml

from kunicorn import __version__
from kunicorn.commands.cli import app
from kunicorn.pipeline.spark import SUBMITTED
from tests.markdown import ROOT, blocks, files
from tests.system.pipeline.versions import VERSIONS

PAGE = ROOT / "docs" / "clusters.md"
TEXTS = [block.text for block in blocks(PAGE)]
PASSWORD = "KUNICORN_KAFKA__SASL_PASSWORD"


def shell(begins: str) -> list[str]:
    """Words of the one command of the page that begins so."""
    (text,) = (each for each in TEXTS if each.startswith(begins))
    return shlex.split(re.sub(r"\s+# .*$", "", text.replace("\\\n", " "), flags=re.MULTILINE))


def behind_kunicorn(words: Sequence[str]) -> list[str]:
    """The arguments that kunicorn gets."""
    at = next(at for at, word in enumerate(words) if word.endswith(("kunicorn/__main__.py", "bin/kunicorn")))
    return list(words[at + 1 :])


def of_airflow() -> list[str]:
    """The pod's arguments, as Airflow renders them for one interval."""
    source = files(PAGE)["dags/orders_replay.py"]
    call = next(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "KubernetesPodOperator"
    )
    told = {each.arg: each.value for each in call.keywords}
    assert ast.literal_eval(told["cmds"]) == ["kunicorn"]
    assert ast.literal_eval(told["retries"]) > 0
    rendered = {
        "{{ data_interval_start.isoformat() }}": "2026-01-01T00:00:00+00:00",
        "{{ data_interval_end.isoformat() }}": "2026-01-02T00:00:00+00:00",
        "replay-{{ data_interval_start.strftime('%Y%m%dT%H%M%S') }}": "replay-20260101T000000",
    }
    arguments: list[str] = ast.literal_eval(told["arguments"])
    assert set(rendered) <= set(arguments)
    return [rendered.get(each, each) for each in arguments]


def of_argo() -> list[str]:
    (workflow,) = (yaml.safe_load(text) for text in TEXTS if "kind: Workflow" in text)
    (template,) = workflow["spec"]["templates"]
    assert template["name"] == workflow["spec"]["entrypoint"]
    assert int(template["retryStrategy"]["limit"]) > 0
    assert template["container"]["command"] == ["kunicorn"]
    mounted = {each["name"] for each in template["container"]["volumeMounts"]}
    assert mounted == {each["name"] for each in workflow["spec"]["volumes"]}
    # One name for all tries of a step, unlike a pod's.
    return [each.replace("{{workflow.name}}", "replay-x7k2p") for each in template["container"]["args"]]


def of_databricks() -> list[str]:
    bundle = yaml.safe_load(next(text for text in TEXTS if "spark_python_task" in text))
    (task,) = bundle["resources"]["jobs"]["replay"]["tasks"]
    assert task["max_retries"] > 0
    assert task["new_cluster"]["spark_env_vars"] == {PASSWORD: "{{secrets/orders/sasl-password}}"}
    return list(task["spark_python_task"]["parameters"])


def of_emr_serverless() -> list[str]:
    return list(serverless()["entryPointArguments"])


def serverless() -> Mapping[str, Any]:
    (told,) = (json.loads(text)["sparkSubmit"] for text in TEXTS if '"sparkSubmit"' in text)
    return told  # type: ignore[no-any-return]


COMMANDS = {
    "airflow": of_airflow,
    "argo": of_argo,
    "standalone": lambda: behind_kunicorn(shell("PYSPARK_PYTHON=")),
    "yarn": lambda: behind_kunicorn(shell("spark-submit --master yarn")),
    "databricks": of_databricks,
    "emr serverless": of_emr_serverless,
}


def parsed(arguments: Sequence[str]) -> Mapping[str, Any]:
    """The options, as the command has them."""
    group: Any = typer.main.get_command(app)
    command: Any = group.commands[arguments[0]].commands[arguments[1]]
    context: click.Context = command.make_context(arguments[1], [*arguments[2:]])
    return context.params


@pytest.mark.parametrize("where", COMMANDS)
def test_a_command_that_is_started_again_goes_on_with_its_run(where: str) -> None:
    arguments = COMMANDS[where]()
    options = parsed(arguments)
    assert arguments[:2] == ["pipeline", "backfill"]
    assert re.fullmatch(r"replay-[a-z0-9T]+", options["begin_or_resume"]), (
        "a name for a directory, the same in each try"
    )
    assert (options["run"], options["resume"]) == (None, None)
    assert options["since"]
    assert options["config"] != Path("config.toml"), "the working directory is the cluster's"


@pytest.mark.parametrize("where", ["yarn", "databricks", "emr serverless"])
def test_where_somebody_else_has_named_the_master_kunicorn_does_not(where: str) -> None:
    assert parsed(COMMANDS[where]())["master"] == SUBMITTED


def test_an_archives_python_settings_and_entry_are_where_it_is_unpacked() -> None:
    words = shell("spark-submit --master yarn")
    (archive,) = (words[at + 1] for at, word in enumerate(words) if word == "--archives")
    assert archive.endswith("/environment.tar.gz#environment")
    assert "spark.pyspark.python=./environment/bin/python" in words
    assert str(parsed(behind_kunicorn(words))["config"]) == "environment/config.toml"
    made = shell("python3.11 -m venv environment")
    assert made[-1] == "/apps/orders/"
    assert "environment.tar.gz" in made
    assert "environment/lib/python3.11/site-packages/kunicorn/__main__.py" in words


def test_no_secret_is_in_a_command_or_a_setting_of_sparks() -> None:
    for words in (*map(shlex.split, (text.replace("\\\n", " ") for text in TEXTS if "spark-submit" in text)),):
        assert [word for word in words if "PASSWORD" in word] == []
    assert "PASSWORD" not in serverless()["sparkSubmitParameters"]
    for where, command in COMMANDS.items():
        assert [word for word in command() if "password" in word.lower()] == [], where


def test_spark_knows_the_settings_that_it_is_given() -> None:
    jars = Path(pyspark.__file__).parent / "jars"
    known = b""
    for jar, name in (
        ("spark-core", "org/apache/spark/internal/config/package$.class"),
        ("spark-core", "org/apache/spark/internal/config/Python$.class"),
        ("spark-yarn", "org/apache/spark/deploy/yarn/config/package$.class"),
    ):
        (file,) = jars.glob(f"{jar}_*.jar")
        archive = zipfile.ZipFile(file)
        known += archive.read(name) if name in archive.namelist() else b""
    words = shell("spark-submit --master yarn")
    settings = [words[at + 1].partition("=")[0] for at, word in enumerate(words) if word == "--conf"]
    assert len(settings) == 3
    assert [each for each in settings if each.encode() not in known] == []


def test_wheels_and_locks_that_it_names_are_those_of_today() -> None:
    text = PAGE.read_text()
    assert set(re.findall(r"kunicorn-(\d[\d.]*\d)-py3", text)) == {__version__}
    locks = set(re.findall(r"requirements-pipeline-[\d.]+\.lock", text))
    assert [lock for lock in locks if not (ROOT / lock).exists()] == []
    assert {f"requirements-pipeline-{VERSIONS[0][:3]}.lock", f"requirements-pipeline-{VERSIONS[-1][:3]}.lock"} <= locks


def test_the_init_script_leaves_out_what_the_runtime_brings(tmp_path: Path) -> None:
    script = next(text for text in TEXTS if text.startswith("# install.sh"))
    (line,) = (each for each in script.splitlines() if each.startswith("awk "))
    program = shlex.split(line.partition(" > ")[0])[1]
    lock = ROOT / "requirements-pipeline-4.0.lock"
    kept = subprocess.run(["awk", program, lock], capture_output=True, text=True, check=True).stdout

    def names(text: str) -> set[str]:
        return set(re.findall(r"^([\w.-]+)==", text, re.MULTILINE))

    left_out = {"pyspark", "py4j", "pandas", "numpy", "pyarrow"}
    assert names(lock.read_text()) - names(kept) == left_out
    assert kept.count("--hash=sha256:") > len(names(kept)), "the hashes of what stays"


@pytest.mark.parametrize(("word", "told"), [("--help", (0, True)), ("no-such-command", (2, False))])
def test_the_file_of_databricks_tells_a_failure_alone(word: str, told: tuple[int, bool], tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(next(text for text in TEXTS if text.startswith("# job.py")))
    as_a_task = f"import runpy; runpy.run_path({str(job)!r}, run_name='__main__'); print('went on')"
    ended = subprocess.run([sys.executable, "-c", as_a_task, word], capture_output=True, text=True, check=False)
    assert (ended.returncode, "went on" in ended.stdout) == told, ended.stderr
