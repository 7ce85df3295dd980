"""The chart with Helm 3 and Helm 4: what it renders is valid, and what the service, Kubernetes and KEDA need of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kunicorn.settings import Settings, load
from tests.deploy.charts import CHART, HELMS, VALUES, Rendered, judged, template
from tests.deploy.tools import Tools

Releases = dict[tuple[str, str], Rendered]
BROKEN = (
    ("monitoring", "minReadySeconds:", "minReadySecond:"),
    ("monitoring", "scrapeTimeout:", "scrapeTimeOut:"),
    ("keda", "scaleTargetRef:", "scaleTarget:"),
)
"""Manifests with a mistake, to see the judge find it: file of values, what is written there, what is written wrong."""
NAMES = ("default", *(file.name.removesuffix("-values.yaml") for file in VALUES))


@pytest.fixture(scope="module")
def everything(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Releases:
    """Every file of values, rendered by both Helms and validated, by (Helm, file); and the broken ones, by mistake."""
    wanted = {
        (helm, name): [file for file in VALUES if file.name == f"{name}-values.yaml"]
        for helm in HELMS
        for name in NAMES
    }
    texts = {where: template(tools, where[0], files=files) for where, files in wanted.items()}
    texts |= {("broken", wrong): texts["helm4", name].replace(right, wrong) for name, right, wrong in BROKEN}
    found = judged(tools, *texts.values(), scratch=tmp_path_factory.mktemp("manifests"))
    return dict(zip(texts, found, strict=True))


@pytest.fixture(scope="module")
def releases(everything: Releases) -> Releases:
    """Those that are meant to be installed."""
    return {where: release for where, release in everything.items() if where[0] in HELMS}


@pytest.fixture(scope="module")
def rendered(releases: Releases) -> Callable[[str], Rendered]:
    """One file's release, by the newer Helm."""
    return lambda name: releases["helm4", name]


def test_every_manifest_of_every_values_file_is_valid(releases: Releases) -> None:
    assert {where: release.problems for where, release in releases.items() if release.problems} == {}


def test_both_helms_render_the_same(releases: Releases) -> None:
    for name in NAMES:
        assert releases["helm3", name].documents == releases["helm4", name].documents, name


def test_unknown_fields_and_missing_ones_are_found(everything: Releases) -> None:
    assert [wrong for _, _, wrong in BROKEN if not everything["broken", wrong].problems] == []


@pytest.mark.parametrize("helm", HELMS)
def test_lint_has_nothing_to_say(tools: Tools, helm: str) -> None:
    for file in (CHART / "values.yaml", *VALUES):
        done = tools.run(helm, "lint", "--strict", CHART, "-f", file)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_service_accepts_every_config_that_is_rendered(releases: Releases, tmp_path: Path) -> None:
    for (helm, name), release in releases.items():
        settings = as_in_the_pod(release, tmp_path / helm / name)
        own_image = name in {"hpa", "handlers", "concurrency"}
        assert settings.handler.entrypoint.startswith("shop.handlers:" if own_image else "handlers:handle")


def as_in_the_pod(release: Rendered, directory: Path) -> Settings:
    """The settings as the container would load them: its config, its environment, and what is mounted."""
    directory.mkdir(parents=True)
    mounts = {each["name"]: each["mountPath"] for each in release.container()["volumeMounts"]}
    text = release.config()
    for name in ("sasl", "oauthbearer", "tls", "http", "schema-registry"):
        for file in re.findall(rf'"{mounts.get(name)}/([^"]+)"', text):
            (directory / file).write_text("a long and secret text")
            text = text.replace(f"{mounts[name]}/{file}", str(directory / file))
    (directory / "config.toml").write_text(text)
    environment = {name: "from-kubernetes" for name in release.environment() if name.startswith("KUNICORN_")}
    return load(directory / "config.toml", environment)


def test_the_service_is_checked_before_it_starts_and_probed_where_it_listens(
    rendered: Callable[[str], Rendered],
) -> None:
    release = rendered("default")
    (check,) = release.pod()["initContainers"]
    assert check["args"] == ["check", "--config", "/etc/kunicorn/config/config.toml"]
    assert release.container()["args"] == ["run", "--config", "/etc/kunicorn/config/config.toml"]
    assert "initContainers" not in rendered("network").pod()
    assert release.container()["ports"] == [{"name": "http", "containerPort": 9400}]
    probes = {name: release.container()[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness")}
    assert probes == {"liveness": "/livez", "readiness": "/readyz"}


def test_values_reach_the_service_as_they_were_written(rendered: Callable[[str], Rendered], tmp_path: Path) -> None:
    settings = as_in_the_pod(rendered("hpa"), tmp_path / "hpa")
    assert settings.handler.options == {
        "currency": "EUR",
        "rate": 0.5,
        "retries": 3,
        "urgent": True,
        "note": 'quotes " and \\ and\nlines and <angles>',
    }
    assert settings.handler.failures[0].exceptions == ("builtins.ValueError",)
    assert settings.kafka.librdkafka == {"fetch.wait.max.ms": 100}
    assert settings.group.topics == ("^orders-.*",)


def test_several_handlers_a_schema_registry_and_transactions_reach_the_service(
    rendered: Callable[[str], Rendered], tmp_path: Path
) -> None:
    release = rendered("handlers")
    settings = as_in_the_pod(release, tmp_path / "handlers")
    assert [each.topics for each in settings.handlers] == [("orders",), ("^refunds-.*",)]
    assert settings.handlers[1].options == {"currency": "EUR"}
    assert settings.producing.in_transactions
    assert settings.producing.librdkafka == {"batch.size": 1_000_000}
    registry = settings.schema_registry
    assert (registry.username, registry.secret()) == ("from-kubernetes", "a long and secret text")
    assert registry.ssl_ca_location is not None
    name = release.environment()["KUNICORN_SCHEMA_REGISTRY__USERNAME"]["valueFrom"]["secretKeyRef"]
    assert name == {"name": "billing-registry", "key": "username"}
    (check,) = release.pod()["initContainers"]
    assert check["volumeMounts"] == release.container()["volumeMounts"], "the check asks the registry, too"


def test_a_login_at_the_registry_alone_leaves_the_user_s_name_in_the_settings(
    rendered: Callable[[str], Rendered], tmp_path: Path
) -> None:
    settings = as_in_the_pod(rendered("concurrency"), tmp_path / "concurrency")
    assert settings.schema_registry.username == "mails"
    assert settings.schema_registry.password_file is not None
    assert (settings.handler.concurrency, settings.handler.ordering) == (64, "key")


def test_static_members_are_a_stateful_set_named_after_its_pods(rendered: Callable[[str], Rendered]) -> None:
    release = rendered("static")
    assert release.workload()["kind"] == "StatefulSet"
    assert release.workload()["spec"]["podManagementPolicy"] == "Parallel"
    name = release.environment()["KUNICORN_GROUP__GROUP_INSTANCE_ID"]
    assert name["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    assert release.only("Service")["spec"]["clusterIP"] == "None"
    (check,) = release.pod()["initContainers"]
    assert "KUNICORN_GROUP__GROUP_INSTANCE_ID" not in {each["name"] for each in check.get("env", [])}
    assert release.container()["image"].startswith("registry.example.com/shop/orders@sha256:0")


@pytest.mark.parametrize(("name", "kind"), [("keda", "ScaledObject"), ("hpa", "HorizontalPodAutoscaler")])
def test_an_autoscaler_owns_the_number_of_pods(rendered: Callable[[str], Rendered], name: str, kind: str) -> None:
    release = rendered(name)
    assert "replicas" not in release.workload()["spec"], "every upgrade would reset the scale"
    spec = release.only(kind)["spec"]
    assert spec["scaleTargetRef"]["name"] == release.workload()["metadata"]["name"]
    advanced = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", spec)
    down = advanced["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] >= 300
    (policy,) = down["policies"]
    assert policy["value"] == 1
    assert policy["periodSeconds"] >= release.pod()["terminationGracePeriodSeconds"], "one drain at a time"


def test_keda_asks_the_brokers_as_the_service_does(rendered: Callable[[str], Rendered]) -> None:
    release = rendered("keda")
    triggers = release.only("ScaledObject")["spec"]["triggers"]
    assert [each["metadata"]["topic"] for each in triggers] == ["orders", "refunds"]
    assert triggers[0]["metadata"]["sasl"] == "scram_sha512"
    assert triggers[0]["metadata"]["tls"] == "enable"
    assert triggers[0]["metadata"]["offsetResetPolicy"] == "earliest"
    authentication = release.only("TriggerAuthentication")
    assert triggers[0]["authenticationRef"]["name"] == authentication["metadata"]["name"]
    parameters = {each["parameter"]: each["key"] for each in authentication["spec"]["secretTargetRef"]}
    expected = {"username": "username", "password": "password", "ca": "ca.crt", "cert": "tls.crt", "key": "tls.key"}
    assert parameters == expected


def test_nothing_runs_as_root_or_writes_outside_of_tmp(releases: Releases) -> None:
    for where, release in releases.items():
        specs = [each["spec"]["template"]["spec"] for each in (*release.all("Deployment"), *release.all("StatefulSet"))]
        specs += [each["spec"]["template"]["spec"] for each in release.all("Job")]
        specs += [each["spec"]["jobTemplate"]["spec"]["template"]["spec"] for each in release.all("CronJob")]
        specs += [each["spec"] for each in release.all("Pod")]
        for spec in specs:
            assert spec["securityContext"]["runAsNonRoot"], where
            assert spec["automountServiceAccountToken"] is False, where
            for container in (*spec.get("initContainers", []), *spec["containers"]):
                if container["name"] != "sidecar":
                    assert container["securityContext"]["readOnlyRootFilesystem"], where
                    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, where


def test_pipelines_read_the_same_config_and_a_changed_job_is_another_one(
    tools: Tools, rendered: Callable[[str], Rendered]
) -> None:
    release = rendered("pipelines")
    job, cron = release.only("Job"), release.only("CronJob")["spec"]
    config = "/etc/kunicorn/config/config.toml"
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["args"][:6] == ["pipeline", "backfill", "--config", config, "--master", "local[*]"]
    assert container["image"] == "kunicorn:0.1.0-pipeline"
    assert cron["concurrencyPolicy"] == "Forbid"
    labels = job["spec"]["template"]["metadata"]["labels"]
    scraped = [each["spec"]["selector"]["matchLabels"] for each in release.all("PodMonitor")]
    assert [wanted.items() <= labels.items() for wanted in scraped] == [False, True], "the service's, and the jobs'"
    assert container["ports"] == [{"name": "http", "containerPort": 9400}], "where a job tells how far it is"
    values = [CHART / "ci/pipelines-values.yaml"]
    changed = template(tools, "helm4", "--set", "config.group.id=others", files=values)
    assert job["metadata"]["name"] not in changed, "Kubernetes refuses to change a Job"


def test_the_alert_rules_carry_group_runbook_and_overrides(rendered: Callable[[str], Rendered]) -> None:
    groups = rendered("monitoring").only("PrometheusRule")["spec"]["groups"]
    rules = {rule["alert"]: rule for group in groups for rule in group["rules"]}
    assert "KunicornSupervisorSlow" not in rules
    assert rules["KunicornNoMembers"]["expr"] == 'absent(kafka_consumer_group_info{group="kunicorn-example"})'
    high = rules["KunicornLagHigh"]
    assert (high["for"], high["labels"]) == ("2m", {"severity": "critical", "team": "orders"})
    assert high["annotations"]["runbook_url"] == "https://runbooks.example.com/kunicorn/KunicornLagHigh.md"


def test_the_notes_name_the_commands_for_this_release(tools: Tools) -> None:
    values = CHART / "ci/static-values.yaml"
    done = tools.run("helm4", "install", "shop", CHART, "--namespace", "prod", "--dry-run=client", "-f", values)
    notes = done.stdout.partition("NOTES:")[2]
    assert 'members of the group "orders"' in notes
    assert "kubectl --namespace prod rollout status statefulset/shop-kunicorn" in notes
    assert "--instance shop-kunicorn-2" in notes
