"""What docs/pipeline.md shows of clusters: nothing in there is a name that neither Spark nor kunicorn knows."""

from __future__ import annotations

import re
import shlex
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pyspark
import pytest
import typer
import yaml

from kunicorn.commands.cli import app
from kunicorn.pipeline.spark import SUBMITTED
from tests.markdown import ROOT, blocks

PAGE = ROOT / "docs" / "pipeline.md"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
(SETTINGS,) = re.findall(r"KUNICORN_CONFIG=(\S+)", DOCKERFILE)
PASSWORD = "KUNICORN_KAFKA__SASL_PASSWORD"
(SUBMIT,) = (block.text for block in blocks(PAGE) if block.text.startswith("spark-submit "))
(APPLICATION,) = (yaml.safe_load(block.text) for block in blocks(PAGE) if "kind: SparkApplication" in block.text)
SPEC: dict[str, Any] = APPLICATION["spec"]
WORDS = shlex.split(SUBMIT.replace("\\\n", " "))
CONF = dict(WORDS[at + 1].split("=", 1) for at, word in enumerate(WORDS) if word == "--conf")
ENTRY = next(at for at, word in enumerate(WORDS) if word.startswith("local://"))


@pytest.fixture(scope="module")
def known_to_spark() -> bytes:
    """The text in the classes that declare Spark's settings."""
    jars = Path(pyspark.__file__).parent / "jars"
    found = b""
    for jar, name in (("spark-kubernetes", "deploy/k8s/Config$"), ("spark-core", "internal/config/package$")):
        (file,) = jars.glob(f"{jar}_*.jar")
        found += zipfile.ZipFile(file).read(f"org/apache/spark/{name}.class")
    return found


def test_spark_knows_each_setting_by_its_name_or_by_what_it_begins_with(known_to_spark: bytes) -> None:
    assert len(CONF) >= 8
    for name in CONF:
        parts = name.split(".")
        begins = [".".join(parts[:count]) + "." for count in range(4, len(parts))]
        assert any(each.encode() in known_to_spark for each in (name, *begins)), name


@pytest.mark.parametrize(
    ("entry", "arguments"),
    [(WORDS[ENTRY], WORDS[ENTRY + 1 :]), (SPEC["mainApplicationFile"], SPEC["arguments"])],
    ids=["spark-submit", "operator"],
)
def test_the_entry_is_the_images_and_takes_these_arguments(entry: str, arguments: Sequence[str]) -> None:
    (version,) = set(re.findall(r"FROM python:(\d\.\d+)-", DOCKERFILE))
    assert "COPY --from=build-pipeline /opt/kunicorn /opt/kunicorn" in DOCKERFILE
    assert (ROOT / "service" / "kunicorn" / "__main__.py").exists()
    assert entry == f"local:///opt/kunicorn/lib/python{version}/site-packages/kunicorn/__main__.py"
    group: Any = typer.main.get_command(app)
    command: Any = group.commands[arguments[0]].commands[arguments[1]]
    context: click.Context = command.make_context(arguments[1], [*arguments[2:]])
    assert context.params["master"] == SUBMITTED
    assert context.params["begin_or_resume"], "what starts it again goes on with it"


def test_driver_and_executors_have_the_settings_where_the_image_looks_and_the_same_password() -> None:
    place = str(Path(SETTINGS).parent)
    for role in ("driver", "executor"):
        assert CONF[f"spark.kubernetes.{role}.secrets.orders-settings"] == place
        assert CONF[f"spark.kubernetes.{role}.secretKeyRef.{PASSWORD}"] == "orders:sasl-password"
        (mount,), (variable,) = SPEC[role]["volumeMounts"], SPEC[role]["env"]
        assert (mount["name"], mount["mountPath"]) == (SPEC["volumes"][0]["name"], place)
        assert variable["name"] == PASSWORD
        assert variable["valueFrom"]["secretKeyRef"] == {"name": "orders", "key": "sasl-password"}
    assert SPEC["sparkVersion"] == pyspark.__version__
