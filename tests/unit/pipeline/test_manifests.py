"""What runs a job on Kubernetes."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from kunicorn.commands.cli import app
from kunicorn.errors import ConfigError
from kunicorn.pipeline.manifests import KINDS, Cluster, arguments_of, job, kubeflow, rendered

COMMAND = ["backfill", "--from", "7d"]


def cluster(kind: str) -> Cluster:
    return Cluster(
        "replay", "shop", "registry/orders:1.4", "orders", "orders-kafka", "spark", 3, arguments_of(COMMAND, kind)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_image_settings_and_secret_by_name_and_no_secret_itself(kind: str) -> None:
    text = rendered(kind, cluster(kind))
    for part in ("registry/orders:1.4", "/etc/kunicorn", "orders-kafka", "sasl-password", "backfill", "7d"):
        assert part in text
    assert "speculation" in text or kind == "job"


def test_a_plain_job_has_its_spark_in_the_pod_and_a_submission_the_clusters() -> None:
    assert job(cluster("job"))["spec"]["template"]["spec"]["containers"][0]["args"][-2:] == ["--master", "local[*]"]
    assert kubeflow(cluster("kubeflow"))["spec"]["arguments"][-2:] == ["--master", "submitted"]
    assert kubeflow(cluster("kubeflow"))["spec"]["executor"]["instances"] == 3


def test_yaml_is_in_block_style_with_texts_quoted() -> None:
    lines = rendered("job", cluster("job")).splitlines()
    assert lines[:6] == [
        'apiVersion: "batch/v1"', 'kind: "Job"', "metadata:", '  name: "replay"', '  namespace: "shop"', "  labels:",
    ]  # fmt: skip
    assert '            - "backfill"' in lines


def test_what_is_no_job_and_what_the_manifest_says_itself_are_refused() -> None:
    for command, why in (
        (["run"], "name the job behind --"),
        ([*COMMAND, "--master", "x"], "--master is the manifest's"),
    ):
        with pytest.raises(ConfigError, match=why):
            arguments_of(command, "job")
    with pytest.raises(ConfigError, match="'helm' is none of submit, job"):
        rendered("helm", cluster("job"))


def test_the_command_prints_it() -> None:
    arguments = ["pipeline", "manifest", "--image", "x", "--kind", "submit", "--", *COMMAND]
    said = CliRunner().invoke(app, arguments).stdout
    assert said.startswith("spark-submit --master k8s://")
    assert said.rstrip().endswith("pipeline backfill --from 7d --config /etc/kunicorn/config.toml --master submitted")
