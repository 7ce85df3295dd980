"""The chart with Helm 3 and Helm 4: what it renders is valid, and what the service, Kubernetes and KEDA need of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kunicorn import __version__
from kunicorn.settings import Settings, load
from tests.deploy.charts import (
    CHART,
    EXAMPLE,
    HELMS,
    NEWER_BY_DAY,
    ROOT,
    VALUES,
    Manifest,
    Refused,
    Rendered,
    judged,
    template,
)
from tests.deploy.tools import Tools

Releases = dict[tuple[str, str], Rendered]
BROKEN = (
    ("monitoring", "minReadySeconds:", "minReadySecond:"),
    ("monitoring", "scrapeTimeout:", "scrapeTimeOut:"),
    ("keda", "scaleTargetRef:", "scaleTarget:"),
)
"""Manifests with a mistake, to see the judge find it: file of values, what is written there, what is written wrong."""
NAMES = tuple(file.name.removesuffix("-values.yaml") for file in VALUES)


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


@pytest.mark.parametrize("helm", NEWER_BY_DAY)
def test_lint_has_nothing_to_say(tools: Tools, helm: str) -> None:
    for file in VALUES:
        done = tools.run(helm, "lint", "--strict", CHART, "-f", file)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_service_accepts_every_config_that_is_rendered(releases: Releases, tmp_path: Path) -> None:
    for (helm, name), release in releases.items():
        settings = as_in_the_pod(release, tmp_path / helm / name)
        assert settings.handler.entrypoint.startswith("handlers:" if name == "example" else "shop.handlers:")


def as_in_the_pod(release: Rendered, directory: Path, headers: str = "authorization: secret") -> Settings:
    """The settings as the container would load them: its config, its environment, and what is mounted. `headers`: what
    the Secret of the collector holds.
    """
    directory.mkdir(parents=True)
    mounts = {each["name"]: each["mountPath"] for each in release.container()["volumeMounts"]}
    text = release.config()
    for name in ("sasl", "oauthbearer", "tls", "http", "http-tls", "schema-registry", "otlp"):
        for file in re.findall(rf'"{mounts.get(name)}/([^"]+)"', text):
            (directory / file).write_text(headers if name == "otlp" else "a long and secret text")
            text = text.replace(f"{mounts[name]}/{file}", str(directory / file))
    (directory / "config.toml").write_text(text)
    environment = {name: "from-kubernetes" for name in release.environment() if name.startswith("KUNICORN_")}
    return load(directory / "config.toml", environment)


def test_the_service_is_checked_before_it_starts_and_probed_where_it_listens(
    rendered: Callable[[str], Rendered],
) -> None:
    release = rendered("example")
    (check,) = release.pod()["initContainers"]
    assert check["args"] == ["check", "--wait", "--config", "/etc/kunicorn/config/config.toml"]
    assert release.container()["args"] == ["run", "--config", "/etc/kunicorn/config/config.toml"]
    assert "initContainers" not in rendered("network").pod()
    assert release.container()["ports"] == [{"name": "http", "containerPort": 9400}]
    assert probes_of(release) == {("/livez", "HTTP"), ("/readyz", "HTTP")}


def probes_of(release: Rendered) -> set[tuple[str, str]]:
    """Path and scheme of the three."""
    asked = [release.container()[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
    assert {each["port"] for each in asked} == {"http"}
    return {(each["path"], each["scheme"]) for each in asked}


def test_with_a_certificate_for_the_port_probes_and_monitors_ask_over_tls(
    tools: Tools, rendered: Callable[[str], Rendered], tmp_path: Path
) -> None:
    release = rendered("monitoring")
    http = as_in_the_pod(release, tmp_path / "mounted").http
    assert (http.scheme, Path(http.tls_certificate_file or "").name) == ("https", "tls.crt")
    (secret,) = (each for each in release.pod()["volumes"] if each["name"] == "http-tls")
    assert secret["secret"]["secretName"] == "orders-http-tls"
    assert probes_of(release) == {("/livez", "HTTPS"), ("/readyz", "HTTPS")}
    (pods,) = release.only("PodMonitor")["spec"]["podMetricsEndpoints"]
    assert (pods["scheme"], pods["tlsConfig"]["serverName"]) == ("https", "orders.shop.svc")
    # A certificate that something else mounts.
    mounted = "config.http.tls_certificate_file=/a.pem,config.http.tls_key_file=/a.key"
    by_hand = ["--set", f"{mounted},serviceMonitor.enabled=true"]
    (own,) = judged(tools, template(tools, "helm4", *by_hand, files=[EXAMPLE]), scratch=tmp_path)
    assert (own.problems, probes_of(own)) == ([], {("/livez", "HTTPS"), ("/readyz", "HTTPS")})
    (service,) = own.only("ServiceMonitor")["spec"]["endpoints"]
    assert (service["scheme"], service["tlsConfig"]) == ("https", {"insecureSkipVerify": True})
    monitors = rendered("pipelines").all("PodMonitor")
    assert [each for each in monitors if "scheme" in each["spec"]["podMetricsEndpoints"][0]] == []
    assert monitors


def test_memory_that_is_not_given_is_what_the_workers_need(rendered: Callable[[str], Rendered]) -> None:
    assert rendered("example").container()["resources"] == {
        "requests": {"cpu": "500m", "memory": "1110Mi", "ephemeral-storage": "256Mi"},
        "limits": {"memory": "1110Mi"},
    }
    four_workers = rendered("static").container()["resources"]
    assert four_workers["limits"] == {"memory": "1750Mi"}
    assert rendered("hpa").container()["resources"]["requests"]["memory"] == "2Gi", "what is given stays"
    assert "memory" not in rendered("hpa").container()["resources"]["limits"]
    (check,) = rendered("static").pod()["initContainers"]
    assert check["resources"] == four_workers
    (job,) = rendered("pipelines").only("Job")["spec"]["template"]["spec"]["containers"]
    assert job["resources"]["requests"]["ephemeral-storage"] == "2Gi", "what Spark may write to /tmp"


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({"memory": "4Gi"}, "4Gi"),
        ({"memory": "1110Mi"}, "1110Mi"),
        ({"memory": "1164M"}, "1164M"),
        ({"memory": None}, "1110Mi"),
    ],
)
def test_memory_that_is_asked_for_is_never_above_the_limit(
    tools: Tools, given: dict[str, str | None], limit: str
) -> None:
    asked = ("--set-json", f"resources.requests={json.dumps(given)}")
    text = template(tools, "helm4", *asked, "-s", "templates/deployment.yaml", files=[EXAMPLE])
    resources = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert (resources["requests"]["memory"], resources["limits"]["memory"]) == (limit, limit)


def test_disk_that_the_chart_asks_for_is_never_above_a_limit_of_the_values(tools: Tools) -> None:
    """Kubernetes refuses a request above its limit, and takes a limit without a request for both."""
    disk = "limits.ephemeral-storage=100Mi"
    text = template(tools, "helm4", "--set", f"resources.{disk}", "-s", "templates/deployment.yaml", files=[EXAMPLE])
    service = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"][0]
    for container in (service, exporting(tools, f"pipeline.resources.{disk}")):
        assert container["resources"]["limits"]["ephemeral-storage"] == "100Mi"
        assert "ephemeral-storage" not in container["resources"]["requests"]


@pytest.mark.parametrize(
    "none", ["pipeline.resources=null", "pipeline.resources.requests=null,pipeline.resources.limits=null"]
)
def test_a_pipeline_whose_resources_are_taken_away_has_none_and_not_those_of_the_service(
    tools: Tools, none: str
) -> None:
    assert exporting(tools, none)["resources"] == {"requests": {"ephemeral-storage": "2Gi"}}


def exporting(tools: Tools, sets: str) -> Manifest:
    """The container of an export, with these values."""
    given = ("--set", f"pipelines.once.command=export,{sets}", "-s", "templates/pipelines.yaml")
    (job,) = (each for each in yaml.safe_load_all(template(tools, "helm4", *given, files=[EXAMPLE])) if each)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    found: Manifest = container
    return found


def test_an_empty_handler_file_is_a_file_and_one_that_is_null_is_none(tools: Tools) -> None:
    files = json.dumps({"handlers.py": None, "shop.py": "", "orders.py": "x = 1"})
    given = ("--set-json", f"handlerFiles={files}", "-s", "templates/handlers.yaml")
    assert yaml.safe_load(template(tools, "helm4", *given, files=[EXAMPLE]))["data"] == {
        "shop.py": "",
        "orders.py": "x = 1",
    }


def test_without_a_number_of_workers_memory_is_that_of_one_for_each_cpu_of_the_limit(
    tools: Tools, tmp_path: Path
) -> None:
    def memory(cpu: str) -> str:
        sets = ("--set", "config.workers.count=null", "--set", f"resources.limits.cpu={cpu}")
        (release,) = judged(tools, template(tools, "helm4", *sets, files=[EXAMPLE]), scratch=tmp_path)
        assert release.problems == []
        return str(release.container()["resources"]["limits"]["memory"])

    assert {cpu: memory(cpu) for cpu in ("500m", "3", "3100m")} == {"500m": "790Mi", "3": "1430Mi", "3100m": "1750Mi"}


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


def test_an_option_without_a_fraction_comes_as_an_integer_as_the_guide_says(tools: Tools) -> None:
    given = ("--set-json", 'config.handler.options={"half": 0.5, "whole": 1.0}', "-s", "templates/configmap.yaml")
    config = yaml.safe_load(template(tools, "helm4", *given, files=[EXAMPLE]))["data"]["config.toml"]
    assert 'options = {"half" = 0.5, "whole" = 1}' in config
    assert "`1.0` from `1`" in (ROOT / "docs" / "operations.md").read_text()


def test_the_filters_that_are_shown_as_values_reach_the_service(tools: Tools, tmp_path: Path) -> None:
    (shown,) = re.findall(r"```yaml\n(config:\n.*?)```", (ROOT / "docs/filters.md").read_text(), flags=re.DOTALL)
    values = tmp_path / "values.yaml"
    values.write_text(shown)
    (release,) = judged(tools, template(tools, "helm4", files=[EXAMPLE, values]), scratch=tmp_path)
    filters = as_in_the_pod(release, tmp_path / "mounted").handler.filters
    assert [(each.on, each.one_of, each.prefix) for each in filters] == [
        ("header:type", ("order", "refund"), None),
        ("key", (), "eu-"),
    ]
    values.write_text(shown.replace('"on"', "on"))
    with pytest.raises(Refused, match="true"):
        template(tools, "helm4", files=[EXAMPLE, values])


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


def test_the_collector_s_headers_come_from_a_secret_and_never_from_the_values(
    rendered: Callable[[str], Rendered], tmp_path: Path
) -> None:
    release = rendered("network")
    otlp = as_in_the_pod(release, tmp_path / "network", "authorization: Bearer a long and secret text").otlp
    assert (otlp.enabled, otlp.endpoint) == (True, "http://collector.monitoring.svc:4318/v1/metrics")
    assert otlp.secret_headers() == {"authorization": "Bearer a long and secret text"}
    assert otlp.ssl_ca_location is not None
    (secret,) = (each["secret"] for each in release.pod()["volumes"] if each["name"] == "otlp")
    assert secret["secretName"] == "orders-collector"


@pytest.mark.parametrize(("auth", "key"), [("sasl", "password"), ("oauthbearer", "clientSecret"), ("http", "token")])
def test_a_secret_without_a_key_of_that_name_is_no_file_of_the_settings(tools: Tools, auth: str, key: str) -> None:
    # Such as one that has only the user's name. The directory it is mounted at would be the path.
    sets = ["--set", f"auth.{auth}.existingSecret=s", "--set", f"auth.{auth}.{key}Key="]
    documents = yaml.safe_load_all(template(tools, "helm4", *sets, files=[EXAMPLE]))
    assert f"/etc/kunicorn/{auth}" not in Rendered([*filter(None, documents)], []).config()


def test_a_rollout_surges_but_where_both_pods_would_handle_the_same_partitions(
    rendered: Callable[[str], Rendered],
) -> None:
    surging = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}}
    assert rendered("example").workload()["spec"]["strategy"] == surging
    assert rendered("assign").workload()["spec"]["strategy"] == {"type": "Recreate"}


def test_static_members_are_a_stateful_set_named_after_its_pods(rendered: Callable[[str], Rendered]) -> None:
    release = rendered("static")
    assert release.workload()["kind"] == "StatefulSet"
    assert release.workload()["spec"]["podManagementPolicy"] == "Parallel"
    name = release.environment()["KUNICORN_GROUP__GROUP_INSTANCE_ID"]
    assert name["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    assert release.only("Service")["spec"]["clusterIP"] == "None"
    (check,) = release.pod()["initContainers"]
    assert name in check["env"], "it says who takes whose place; as a newcomer it would be one that idles"
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


@pytest.mark.parametrize(("grace", "period"), [(40, 60), (600, 615), (2400, 1800), (3600, 1800)])
def test_one_pod_leaves_in_a_drain_s_time_or_in_the_half_hour_that_kubernetes_allows(
    tools: Tools, grace: int, period: int
) -> None:
    clocks = f"terminationGracePeriodSeconds={grace},autoscaling.scaleDownStabilizationSeconds=3600"
    given = ("--set", f"{clocks},autoscaling.hpa.enabled=true", "-s", "templates/horizontalpodautoscaler.yaml")
    down = yaml.safe_load(template(tools, "helm4", *given, files=[EXAMPLE]))["spec"]["behavior"]["scaleDown"]
    assert down["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": period}]


def test_keda_asks_the_brokers_as_the_service_does(rendered: Callable[[str], Rendered]) -> None:
    release = rendered("keda")
    triggers = release.only("ScaledObject")["spec"]["triggers"]
    assert [each["metadata"]["topic"] for each in triggers][:2] == ["orders", "refunds"]
    assert triggers[0]["metadata"]["sasl"] == "scram_sha512"
    assert triggers[0]["metadata"]["tls"] == "enable"
    assert "unsafeSsl" not in triggers[0]["metadata"]
    assert triggers[0]["metadata"]["offsetResetPolicy"] == "earliest"
    authentication = release.only("TriggerAuthentication")
    assert triggers[0]["authenticationRef"]["name"] == authentication["metadata"]["name"]
    parameters = {each["parameter"]: each["key"] for each in authentication["spec"]["secretTargetRef"]}
    expected = {"username": "username", "password": "password", "ca": "ca.crt", "cert": "tls.crt", "key": "tls.key"}
    assert parameters == expected


@pytest.mark.parametrize(
    ("name", "ports"),
    [
        ("network", [[53, 53], [9092, 9093, 9094], [4318], [5432]]),
        ("handlers", [[53, 53], [9092], [8081]]),
        ("hpa", [[53, 53], [9093], [443]]),
    ],
)
def test_what_the_settings_name_can_be_reached_and_nothing_else(
    rendered: Callable[[str], Rendered], name: str, ports: list[list[int]]
) -> None:
    egress = rendered(name).only("NetworkPolicy")["spec"]["egress"]
    assert [[port["port"] for port in rule["ports"]] for rule in egress] == ports
    assert ("to" in egress[0]) == (name != "hpa"), "names are looked up in kube-system unless told otherwise"


def test_keda_is_asked_once_for_topics_by_pattern_and_checks_names_as_the_service_does(
    tools: Tools, tmp_path: Path
) -> None:
    kafka = {"security_protocol": "SASL_SSL", "ssl_endpoint_identification_algorithm": "none"}
    given = json.dumps({**kafka, "bootstrap_servers": ["kafka:9093"], "sasl_mechanism": "PLAIN", "sasl_username": "u"})
    sets = ("--set-json", f"config.kafka={given}", "--set", "config.group.topics={^orders-.*,refunds}")
    keda = "autoscaling.keda.enabled=true,auth.sasl.existingSecret=orders-login,auth.sasl.usernameKey=user"
    text = template(tools, "helm4", *sets, "--set", keda, files=[EXAMPLE])
    (release,) = judged(tools, text, scratch=tmp_path)
    assert release.problems == []
    (trigger,) = release.only("ScaledObject")["spec"]["triggers"]
    assert "topic" not in trigger["metadata"]
    assert (trigger["metadata"]["tls"], trigger["metadata"]["unsafeSsl"]) == ("enable", "true")


@pytest.mark.parametrize("helm", NEWER_BY_DAY)
@pytest.mark.parametrize("key", ["", "client-id"])
def test_keda_is_told_where_tokens_come_from_by_the_one_place_that_it_reads(
    tools: Tools, tmp_path: Path, helm: str, key: str
) -> None:
    """KEDA's `parseOAuthParams`: all of these come from a TriggerAuthentication, and a trigger without user, password
    and endpoint is refused."""
    oauth = {
        "token_endpoint_url": "https://login.example.com/token",
        "client_id": "orders",
        "scope": "kafka",
        "extensions": "logicalCluster=lkc-1,identityPoolId=pool-1",
    }
    kafka = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "bootstrap_servers": ["kafka:9093"]}
    given = json.dumps(kafka | {f"sasl_oauthbearer_{name}": value for name, value in oauth.items()})
    sets = f"autoscaling.keda.enabled=true,auth.oauthbearer.existingSecret=login,auth.oauthbearer.clientIdKey={key}"
    text = template(tools, helm, "--set-json", f"config.kafka={given}", "--set", sets, files=[EXAMPLE])
    (release,) = judged(tools, text, scratch=tmp_path)
    assert release.problems == []
    (trigger,) = release.only("ScaledObject")["spec"]["triggers"]
    assert trigger["metadata"]["sasl"] == "oauthbearer"
    assert not {"oauthTokenEndpointUri", "scopes", "oauthExtensions"} & trigger["metadata"].keys()
    spec = release.only("TriggerAuthentication")["spec"]
    maps = {each["metadata"]["name"]: each["data"] for each in release.all("ConfigMap")}
    told = {each["parameter"]: maps[each["name"]][each["key"]] for each in spec["configMapTargetRef"]}
    secret = {each["parameter"]: (each["name"], each["key"]) for each in spec["secretTargetRef"]}
    expected = {"oauthTokenEndpointUri": oauth["token_endpoint_url"], "scopes": "kafka"}
    expected |= {"oauthExtensions": oauth["extensions"], **({} if key else {"username": "orders"})}
    assert told == expected
    assert secret["password"] == ("login", "client-secret")
    assert secret.get("username") == (("login", key) if key else None)


def test_what_waits_in_retry_topics_keeps_a_pod_where_keda_scales_to_none(
    tools: Tools, rendered: Callable[[str], Rendered], tmp_path: Path
) -> None:
    release = rendered("keda")
    waiting = release.only("ScaledObject")["spec"]["triggers"][2:]
    named = as_in_the_pod(release, tmp_path / "keda").retry_topics
    assert [each["metadata"]["topic"] for each in waiting] == list(named)
    assert list(named) == ["orders.retry.1500ms", "orders.retry.90s", "orders.retry.10m", "orders.retry.2h"]
    for trigger in waiting:
        told = trigger["metadata"]
        assert told["activationLagThreshold"] == "0", "the last few records, too, are to be handled"
        assert int(told["lagThreshold"]) >= 1_000_000_000, "records that wait are no reason for a second pod"
        assert told["offsetResetPolicy"] == "earliest"
        assert (told["sasl"], trigger["authenticationRef"]["name"]) == ("scram_sha512", "orders-kunicorn")


def test_keda_is_told_the_retry_topics_of_several_handlers_and_of_none_where_a_pod_stays(
    tools: Tools, tmp_path: Path
) -> None:
    handlers = [
        {"entrypoint": "shop:a", "topics": ["orders"], "retry_topic_delays_ms": [60000]},
        {"entrypoint": "shop:b", "topics": ["^refunds-.*"], "retry_topic_delays_ms": [5000],
         "retry_topic": "{group}.refunds.{delay}"},
        {"entrypoint": "shop:c", "topics": ["mails"]},
    ]  # fmt: skip
    sets = ["--set-json", f"config.handlers={json.dumps(handlers)}"]
    sets += ["--set", "config.group.auto_offset_reset=latest,autoscaling.keda.enabled=true"]
    values = [CHART / "ci/handlers-values.yaml"]
    zero, one = (
        template(tools, "helm4", *sets, "--set", f"autoscaling.minReplicas={least}", files=values) for least in (0, 1)
    )
    asleep, awake = judged(tools, zero, one, scratch=tmp_path)
    assert (asleep.problems, awake.problems) == ([], [])
    told = [each["metadata"] for each in asleep.only("ScaledObject")["spec"]["triggers"]]
    assert [(each.get("topic"), each["offsetResetPolicy"]) for each in told] == [
        (None, "latest"),
        ("billing.retry.1m", "earliest"),
        ("billing.refunds.5s", "earliest"),
    ]
    assert set(as_in_the_pod(asleep, tmp_path / "asleep").retry_topics) == {each["topic"] for each in told[1:]}
    assert len(awake.only("ScaledObject")["spec"]["triggers"]) == 1


def test_token_users_and_objects_of_the_reader_s_own_are_values(rendered: Callable[[str], Rendered]) -> None:
    static, example = rendered("static"), rendered("example")
    assert (static.pod()["hostUsers"], static.pod()["automountServiceAccountToken"]) == (False, True)
    assert "hostUsers" not in example.pod()
    assert "orders-shared" in {each["metadata"]["name"] for each in static.all("ConfigMap")}


def test_what_a_cluster_wants_of_its_pods_are_values(tools: Tools, tmp_path: Path) -> None:
    wanted = {
        "runtimeClassName": "gvisor",
        "dnsPolicy": "Default",
        "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
        "hostAliases": [{"ip": "10.0.0.7", "hostnames": ["kafka"]}],
    }
    lifecycle = {"preStop": {"exec": {"command": ["/bin/true"]}}}
    more = {
        "lifecycle": lifecycle,
        "serviceAccount": {"labels": {"team": "orders"}},
        "podDisruptionBudget": {"unhealthyPodEvictionPolicy": "IfHealthyBudget"},
    }
    sets = [
        word for name, value in {**wanted, **more}.items() for word in ("--set-json", f"{name}={json.dumps(value)}")
    ]
    text = template(tools, "helm4", *sets, files=[CHART / "ci/example-values.yaml"])
    (release,) = judged(tools, text, scratch=tmp_path)
    assert release.problems == []
    spec = release.only("Deployment")["spec"]["template"]["spec"]
    assert {name: spec[name] for name in wanted} == wanted
    assert spec["containers"][0]["lifecycle"] == lifecycle
    assert release.only("ServiceAccount")["metadata"]["labels"]["team"] == "orders"
    assert release.only("PodDisruptionBudget")["spec"]["unhealthyPodEvictionPolicy"] == "IfHealthyBudget"


def test_what_comes_before_the_service_comes_before_all_that_have_its_handler(tools: Tools, tmp_path: Path) -> None:
    """It may need what another container has put into a volume: in a test of the release, a job, Spark's executors."""
    first = [{"name": "models", "image": "models:1"}]
    given = ("--set-json", f"extraInitContainers={json.dumps(first)}")
    values = [CHART / "ci/pipelines-values.yaml", CHART / "ci/executors-values.yaml"]
    (release,) = judged(tools, template(tools, "helm4", *given, files=values), scratch=tmp_path)
    assert release.problems == []
    (spark,) = (each["data"] for each in release.all("ConfigMap") if "executor.yaml" in each["data"])
    jobs = (release.only("Job")["spec"], release.only("CronJob")["spec"]["jobTemplate"]["spec"])
    pods = [each["template"]["spec"] for each in jobs]
    pods += [yaml.safe_load(spark["executor.yaml"])["spec"], release.only("Pod")["spec"]]
    assert [each["initContainers"] for each in pods] == [first] * 4
    without = yaml.safe_load_all(template(tools, "helm4", files=values))
    assert "initContainers" not in json.dumps([each for each in without if each["kind"] in {"Job", "CronJob", "Pod"}])


def test_the_test_of_the_service_is_known_by_what_its_pods_are_known_by(tools: Tools) -> None:
    """An identity of the cloud goes by a label, what injects secrets by an annotation."""
    given = "podLabels.identity=orders,podAnnotations.inject=true"
    text = template(tools, "helm4", "--set-string", given, "-s", "templates/tests/check.yaml", files=[EXAMPLE])
    metadata = yaml.safe_load(text)["metadata"]
    assert metadata["labels"]["identity"] == "orders"
    assert metadata["labels"]["app.kubernetes.io/component"] == "test"
    assert (metadata["annotations"]["inject"], metadata["annotations"]["helm.sh/hook"]) == ("true", "test")


def test_scratch_space_does_not_keep_a_node_that_the_cluster_autoscaler_would_remove(tools: Tools) -> None:
    """It leaves a node alone that has a pod with an emptyDir, unless an annotation of the pod names the volume."""
    may_go = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"

    def template_of(*sets: str) -> Manifest:
        text = template(tools, "helm4", *sets, "-s", "templates/deployment.yaml", files=[EXAMPLE])
        assert list(keys_that_stand_twice(yaml.compose(text, yaml.SafeLoader))) == []
        found: Manifest = yaml.safe_load(text)["spec"]["template"]
        return found

    pod = template_of()
    local = [each["name"] for each in pod["spec"]["volumes"] if "emptyDir" in each]
    assert pod["metadata"]["annotations"][may_go].split(",") == local
    own = template_of("--set-json", "podAnnotations=" + json.dumps({may_go: "tmp,models"}))
    assert own["metadata"]["annotations"][may_go] == "tmp,models"


def test_an_image_is_the_one_of_its_digest_and_a_tag_beside_it_can_be_read(tools: Tools, tmp_path: Path) -> None:
    def images(*sets: str) -> list[str]:
        given = ("image.repository=shop", "pipelines.replay.command=backfill", *sets)
        text = template(tools, "helm4", *(word for each in given for word in ("--set", each)), files=[EXAMPLE])
        (release,) = judged(tools, text, scratch=tmp_path)
        assert release.problems == []
        return [release.only(kind)["spec"]["template"]["spec"]["containers"][0]["image"] for kind in _WITH_IMAGE]

    service, job = f"sha256:{'0' * 64}", f"sha256:{'1' * 64}"
    both = (f"image.digest={service}", f"pipeline.image.digest={job}")
    assert images() == [f"shop:{__version__}", f"shop:{__version__}-pipeline"]
    assert images(*both) == [f"shop@{service}", f"shop@{job}"]
    assert images(*both, "image.tag=2026.11.1", "pipeline.image.tag=jobs", "pipeline.image.repository=spark") == [
        f"shop:2026.11.1@{service}",
        f"spark:jobs@{job}",
    ]


_WITH_IMAGE = ("Deployment", "Job")


def test_names_of_digits_alone_stay_names(tools: Tools, tmp_path: Path) -> None:
    """YAML reads 1234 as a number and 2026-11-26 as a day, and Kubernetes takes neither for a name."""
    logins = ("sasl", "oauthbearer", "tls", "http", "httpTls", "schemaRegistry", "otlp")
    digits = {
        **{f"auth.{each}.existingSecret": "1234" for each in logins},
        **{f"auth.{each}.usernameKey": "5678" for each in ("sasl", "schemaRegistry")},
        "auth.oauthbearer.clientIdKey": "5678",
        "auth.oauthbearer.clientSecretKey": "1e3",
        "nameOverride": "7",
        "fullnameOverride": "2026-11-26",
        "serviceAccount.name": "0x1f",
        "priorityClassName": "1",
        "runtimeClassName": "2",
        "pipelines.12.schedule": "0 3 * * *",
        "pipelines.12.command": "catch-up",
        "autoscaling.hpa.metricName": "3",
        "tmp.sizeLimit": "1e9",
    }
    enabled = (
        "config.schema_registry.url=https://registry,config.otlp.enabled=true,networkPolicy.enabled=true,"
        "networkPolicy.ingressFrom[0].podSelector.matchLabels.a=b,"
        "prometheusRule.enabled=true,dashboard.enabled=true,service.enabled=true"
    )
    sets = [word for name, value in digits.items() for word in ("--set-string", f"{name}={value}")]
    texts = [
        template(tools, "helm4", *sets, "--set", f"{enabled},{more}", "--namespace", "42", files=[EXAMPLE])
        for more in (
            "autoscaling.keda.enabled=true,podMonitor.enabled=true",
            "autoscaling.hpa.enabled=true,serviceMonitor.enabled=true",
            _STATIC,
            _EXECUTORS,
        )
    ]
    for release in judged(tools, *texts, scratch=tmp_path):
        assert release.problems == []
        assert {each["metadata"]["namespace"] for each in release.documents if each["kind"] != "Pod"} == {"42"}
        assert release.workload()["metadata"]["name"] == "2026-11-26"
        secrets = [each["secret"]["secretName"] for each in release.pod()["volumes"] if "secret" in each]
        assert secrets == ["1234"] * 7
        name = release.environment()["KUNICORN_KAFKA__SASL_USERNAME"]["valueFrom"]["secretKeyRef"]
        assert name == {"name": "1234", "key": "5678"}


_STATIC = "membership.static=true,config.group.session_timeout_ms=90000"
_EXECUTORS = "pipeline.master=k8s://https://kubernetes.default.svc"


def keys_that_stand_twice(node: Any) -> Iterator[str]:
    """In YAML as it was composed: what kustomize and Flux refuse, and other readers take the last of."""
    if isinstance(node, yaml.MappingNode):
        names = [key.value for key, _ in node.value]
        yield from (name for name in names if names.count(name) > 1)
        for _, value in node.value:
            yield from keys_that_stand_twice(value)
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from keys_that_stand_twice(each)


_LABELLED = ("podLabels", "serviceAccount.labels", "podMonitor.labels", "serviceMonitor.labels", "dashboard.labels",
             "prometheusRule.labels", "prometheusRule.alertLabels")  # fmt: skip
_ANNOTATED = ("podAnnotations", "serviceAccount.annotations", "service.annotations", "dashboard.annotations",
              "autoscaling.keda.annotations")  # fmt: skip
_ALL_KINDS = (
    "podMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true,"
    "networkPolicy.enabled=true,networkPolicy.ingressFrom[0].podSelector.matchLabels.a=b,handlerFiles.a=b,"
    "auth.sasl.existingSecret=login,auth.sasl.usernameKey=user,autoscaling.keda.enabled=true,"
    "pipelines.once.command=export,pipelines.daily.command=export,pipelines.daily.schedule=@daily,"
    f"{_EXECUTORS}"
)


def test_every_object_has_everybody_s_labels_and_annotations_and_its_own_go_over_them(tools: Tools) -> None:
    owned = ",".join(f"{each}.team=own" for each in (*_LABELLED, *_ANNOTATED))
    common = "commonLabels.team=common,commonLabels.severity=common,commonAnnotations.team=common"
    text = template(tools, "helm4", "--set", f"{_ALL_KINDS},{owned},{common}", files=[EXAMPLE])
    # The two monitors exclude each other.
    instead = f"serviceMonitor.enabled=true,{owned},{common}"
    text += template(tools, "helm4", "--set", instead, "-s", "templates/servicemonitor.yaml", files=[EXAMPLE])
    text += template(tools, "helm4", "--set", instead, "-s", "templates/service.yaml", files=[EXAMPLE])
    assert [name for each in yaml.compose_all(text, yaml.SafeLoader) for name in keys_that_stand_twice(each)] == []
    documents = [each for each in yaml.safe_load_all(text) if each]
    kinds = {"Deployment", "PodMonitor", "ServiceMonitor", "PrometheusRule", "ScaledObject", "CronJob", "Role", "Pod"}
    assert kinds <= {each["kind"] for each in documents}

    def by_kind(what: str) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for each in documents:
            found.setdefault(each["kind"], set()).add(each["metadata"].get(what, {}).get("team"))
        return found

    labels, annotations = by_kind("labels"), by_kind("annotations")
    own = {each: {"own"} for each in ("PodMonitor", "ServiceMonitor", "PrometheusRule", "ServiceAccount", "Pod")}
    dashboards = {"ConfigMap": {"common", "own"}}
    assert labels == {kind: {"common"} for kind in labels} | own | dashboards
    own = {each: {"own"} for each in ("Service", "ScaledObject", "ServiceAccount", "Pod")}
    assert annotations == {kind: {"common"} for kind in annotations} | own | dashboards
    (deployment,) = (each for each in documents if each["kind"] == "Deployment")
    assert deployment["spec"]["template"]["metadata"]["labels"]["team"] == "own"
    (rule,) = (each for each in documents if each["kind"] == "PrometheusRule")
    alerts = [each for group in rule["spec"]["groups"] for each in group["rules"] if "alert" in each]
    assert {each["labels"]["team"] for each in alerts} == {"own"}


def test_nothing_runs_as_root_or_writes_outside_of_tmp(releases: Releases) -> None:
    for where, release in releases.items():
        specs = [each["spec"]["template"]["spec"] for each in (*release.all("Deployment"), *release.all("StatefulSet"))]
        specs += [each["spec"]["template"]["spec"] for each in release.all("Job")]
        specs += [each["spec"]["jobTemplate"]["spec"]["template"]["spec"] for each in release.all("CronJob")]
        specs += [each["spec"] for each in release.all("Pod")]
        for spec in specs:
            assert spec["securityContext"]["runAsNonRoot"], where
            asks = where[1] == "static" or "k8s://" in str(spec)
            assert spec["automountServiceAccountToken"] is asks, where
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
    assert container["args"][:6] == ["pipeline", "backfill", "--config", config, "--master", "local[1]"]
    assert container["image"] == f"kunicorn:{__version__}-pipeline"
    assert release.all("Role") == [], "Spark in one pod asks nobody for others"
    assert cron["concurrencyPolicy"] == "Forbid"
    labels = job["spec"]["template"]["metadata"]["labels"]
    scraped = [each["spec"]["selector"]["matchLabels"] for each in release.all("PodMonitor")]
    assert [wanted.items() <= labels.items() for wanted in scraped] == [False, True], "the service's, and the jobs'"
    assert container["ports"] == [{"name": "http", "containerPort": 9400}], "where a job tells how far it is"
    values = [CHART / "ci/pipelines-values.yaml"]
    changed = template(tools, "helm4", "--set", "config.group.id=others", files=values)
    assert job["metadata"]["name"] not in changed, "Kubernetes refuses to change a Job"


@pytest.mark.parametrize(
    ("sets", "master"),
    [
        ("", "local[1]"),
        ("pipeline.resources.requests.cpu=2500m", "local[3]"),
        ("pipeline.resources.requests.cpu=500m,pipeline.resources.limits.cpu=4", "local[4]"),
        ("pipeline.resources.requests.cpu=null", "local[*]"),
        ("pipeline.resources=null", "local[*]"),
        ("pipeline.master=local[8]", "local[8]"),
        ("pipeline.master=k8s://https://kubernetes.default.svc", "k8s://https://kubernetes.default.svc"),
    ],
)
def test_spark_in_one_pod_has_a_core_for_each_of_its_cpus_and_not_for_each_of_the_node(
    tools: Tools, sets: str, master: str
) -> None:
    assert exporting(tools, sets)["args"][-2:] == ["--master", master]


REPLAY = "pipelines: {replay-2026: {command: backfill, args: [--from, 2026-01-01T00:00:00Z]}}"


def run_of(tools: Tools, tmp_path: Path, pipelines: str = REPLAY, *sets: str) -> tuple[str, str]:
    """Names of the backfill's Job, and of its run, with such values besides."""
    values = tmp_path / "values.yaml"
    values.write_text(pipelines)
    given = [argument for each in sets for argument in ("--set", each)]
    text = template(tools, "helm4", *given, files=[EXAMPLE, values])
    (job,) = (each for each in yaml.safe_load_all(text) if each and each["kind"] == "Job")
    *_, option, run = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert option == "--begin-or-resume"
    return job["metadata"]["name"], run


@pytest.fixture(scope="module")
def unchanged(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Names of the backfill's Job, and of its run."""
    return run_of(tools, tmp_path_factory.mktemp("unchanged"))


@pytest.mark.parametrize(
    "changed",
    [
        "image.tag=1.5",
        "config.log.level=debug",
        "config.kafka.bootstrap_servers={other:9092}",
        "pipeline.resources.limits.memory=3Gi",
        "pipeline.backoffLimit=5",
        "pipeline.master=k8s://https://kubernetes.default.svc",
        "podLabels.team=orders",
        "podAnnotations.team=orders",
        "commonLabels.team=orders",
        "pipelines.another.command=catch-up,pipelines.another.schedule=0 3 * * *",
    ],
)
def test_a_backfill_goes_on_with_its_run_whatever_else_is_changed(
    tools: Tools, tmp_path: Path, unchanged: tuple[str, str], changed: str
) -> None:
    (job, run), (other_job, same) = unchanged, run_of(tools, tmp_path, REPLAY, changed)
    assert "$" not in run, "the Job's own name changes"
    assert same == run, "another run would handle all records again"
    assert (other_job == job) == changed.startswith("pipelines.another"), "Kubernetes refuses to change a Job"


def test_another_thing_to_do_is_another_run(tools: Tools, tmp_path: Path) -> None:
    others = [(REPLAY.replace("2026-01", "2025-01"),), (REPLAY.replace("replay-2026", "replay"),)]
    asked: list[tuple[str, ...]] = [(REPLAY,), *others, (REPLAY, "fullnameOverride=refunds")]
    runs = [run_of(tools, tmp_path, *each)[1] for each in asked]
    assert len(set(runs)) == len(runs)
    names = [
        "orders-kunicorn-replay-2026",
        "orders-kunicorn-replay-2026",
        "orders-kunicorn-replay",
        "refunds-replay-2026",
    ]
    assert [each.rpartition("-")[0] for each in runs] == names


def test_each_time_of_a_cron_job_is_a_run_of_its_own(tools: Tools, tmp_path: Path) -> None:
    values = [CHART / "ci/pipelines-values.yaml"]
    text = template(tools, "helm4", "--set", "pipelines.nightly.command=backfill", files=values)
    (cron,) = (each for each in yaml.safe_load_all(text) if each and each["kind"] == "CronJob")
    (container,) = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][-2:] == ["--begin-or-resume", "$(JOB_NAME)"], "a second try goes on with the first's"


@pytest.mark.parametrize(("sets", "seconds"), [((), 60), (("config.pipeline.range_seconds=300",), 330)])
def test_a_pipelines_pod_has_the_time_that_its_ranges_take(
    tools: Tools, tmp_path: Path, sets: tuple[str, ...], seconds: int
) -> None:
    given = [argument for each in sets for argument in ("--set", each)]
    text = template(tools, "helm4", *given, files=[CHART / "ci/pipelines-values.yaml"])
    every = [each for each in yaml.safe_load_all(text) if each]
    jobs = [each["spec"] for each in every if each["kind"] == "Job"]
    jobs += [each["spec"]["jobTemplate"]["spec"] for each in every if each["kind"] == "CronJob"]
    assert [each["template"]["spec"]["terminationGracePeriodSeconds"] for each in jobs] == [seconds] * 2


def jobs_of(release: Rendered) -> dict[str, Manifest]:
    """Specs of the Jobs, by command."""
    specs = [each["spec"] for each in release.all("Job")]
    return {each["template"]["spec"]["containers"][0]["args"][1]: each for each in specs}


@pytest.mark.parametrize(("value", "ttl"), [("0", 0), ("600", 600), ("null", None)])
def test_a_finished_job_stays_as_long_as_was_said_and_no_time_at_all_with_0(
    tools: Tools, value: str, ttl: int | None
) -> None:
    given = ("--set", f"pipeline.ttlSecondsAfterFinished={value}")
    text = template(tools, "helm4", *given, files=[CHART / "ci/pipelines-values.yaml"])
    (job,) = (each for each in yaml.safe_load_all(text) if each and each["kind"] == "Job")
    assert job["spec"].get("ttlSecondsAfterFinished") == ttl


def test_a_run_that_is_held_back_is_the_same_job_when_it_may_begin(tools: Tools) -> None:
    def specs(*sets: str) -> dict[str, Manifest]:
        given = [word for each in sets for word in ("--set", each)]
        text = template(tools, "helm4", *given, files=[CHART / "ci/pipelines-values.yaml"])
        documents = [each for each in yaml.safe_load_all(text) if each]
        return {each["metadata"]["name"]: each["spec"] for each in documents if each["kind"] in ("Job", "CronJob")}

    free, held = specs(), specs("pipelines.replay-2026.suspend=true", "pipelines.nightly.suspend=true")
    assert free.keys() == held.keys(), "another Job would begin beside the one that is held back"
    assert {spec.get("suspend", False) for spec in free.values()} == {False}
    assert {spec["suspend"] for spec in held.values()} == {True}


def test_a_pod_that_its_node_takes_down_is_replaced_and_a_stream_is_tried_for_ever(
    tools: Tools, tmp_path: Path
) -> None:
    endless = ("--set", "pipelines.live.command=stream", "--set", "config.pipeline.directory=s3://orders-runs/streams")
    ending = (*endless, "--set", "pipelines.live.args={--available-now}")
    values = [CHART / "ci/pipelines-values.yaml"]
    texts = [template(tools, "helm4", *arguments, files=values) for arguments in (endless, ending)]
    for_ever, now = (jobs_of(each) for each in judged(tools, *texts, scratch=tmp_path))
    for each in (*for_ever.values(), *now.values()):
        (rule,) = each["podFailurePolicy"]["rules"]
        assert rule["action"] == "Ignore"
        assert rule["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
        assert each["template"]["spec"]["restartPolicy"] == "Never", "or Kubernetes refuses the policy"
    assert for_ever["stream"]["backoffLimit"] == 2**31 - 1
    assert "activeDeadlineSeconds" not in for_ever["stream"]
    bounded = [for_ever["backfill"], now["stream"]]
    assert [(each["backoffLimit"], each["activeDeadlineSeconds"]) for each in bounded] == [(2, 14400)] * 2


@pytest.fixture(scope="module")
def executors(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    """A release whose pipelines have executors of their own."""
    values = [CHART / "ci/pipelines-values.yaml", CHART / "ci/executors-values.yaml"]
    (release,) = judged(tools, template(tools, "helm4", files=values), scratch=tmp_path_factory.mktemp("executors"))
    assert release.problems == []
    return release


def test_sparks_executors_are_pods_with_what_the_driver_has_but_its_rights(executors: Rendered) -> None:
    release = executors
    driver = release.only("Job")["spec"]["template"]["spec"]
    (container,) = driver["containers"]
    assert "k8s://https://kubernetes.default.svc" in container["args"]
    assert {"name": "spark", "mountPath": "/etc/kunicorn/spark", "readOnly": True} in container["volumeMounts"]
    (spark,) = (each["data"] for each in release.all("ConfigMap") if "spark-defaults.conf" in each["data"])
    told = dict(line.split(" ", 1) for line in spark["spark-defaults.conf"].splitlines() if line.startswith("spark."))
    assert told["spark.kubernetes.container.image"] == container["image"]
    executor = yaml.safe_load(spark["executor.yaml"])
    names = [told["spark.kubernetes.executor.podTemplateContainerName"]]
    assert names == [each["name"] for each in executor["spec"]["containers"]]
    assert told["spark.kubernetes.executor.podTemplateFile"] == "/etc/kunicorn/spark/executor.yaml"
    (pod,) = executor["spec"]["containers"]
    assert pod["securityContext"] == container["securityContext"]
    # By its name Spark takes it for SPARK_LOCAL_DIRS; beside any other it would mount one more at the same place, and
    # Kubernetes refuses such a pod.
    scratch = {"name": "spark-local-dir-1", "mountPath": "/tmp"}
    settings = {"name": "config", "mountPath": "/etc/kunicorn/config", "readOnly": True}
    assert pod["volumeMounts"] == [settings, scratch], "no settings of the driver's"
    assert "ENV SPARK_LOCAL_DIRS=/tmp\n" in (ROOT / "Dockerfile").read_text()
    assert {each["name"] for each in executor["spec"]["volumes"]} == {"config", "spark-local-dir-1"}
    assert (driver["automountServiceAccountToken"], executor["spec"]["automountServiceAccountToken"]) == (True, False)
    (binding,) = release.all("RoleBinding")
    assert [each["name"] for each in binding["subjects"]] == [driver["serviceAccountName"]]
    assert executor["spec"]["serviceAccountName"] != driver["serviceAccountName"]
    live = release.only("Deployment")["spec"]["template"]["spec"]
    assert live["serviceAccountName"] != driver["serviceAccountName"], "the service itself needs no rights"


def test_sparks_pods_reach_one_another_and_kubernetes_and_the_service_s_pods_do_not(executors: Rendered) -> None:
    release = executors
    (spark,) = (each["data"] for each in release.all("ConfigMap") if "executor.yaml" in each["data"])
    executor = yaml.safe_load(spark["executor.yaml"])["metadata"]["labels"]
    driver = release.only("Job")["spec"]["template"]["metadata"]["labels"]
    service = release.workload()["spec"]["template"]["metadata"]["labels"]
    everybody_s, sparks = (each["spec"] for each in release.all("NetworkPolicy"))

    def chooses(selector: Manifest, labels: Mapping[str, str]) -> bool:
        among = all(labels[each["key"]] in each["values"] for each in selector.get("matchExpressions", ()))
        return among and selector["matchLabels"].items() <= labels.items()

    assert [chooses(everybody_s["podSelector"], each) for each in (executor, driver, service)] == [True] * 3
    assert [chooses(sparks["podSelector"], each) for each in (executor, driver, service)] == [True, True, False]
    (within,) = sparks["ingress"]
    to_each_other, to_kubernetes = sparks["egress"]
    for (peer,) in (within["from"], to_each_other["to"]):
        assert [chooses(peer["podSelector"], each) for each in (executor, driver, service)] == [True, True, False]
    assert [each["port"] for each in to_kubernetes["ports"]] == [443, 6443]
    assert [[port["port"] for port in rule["ports"]] for rule in everybody_s["egress"]] == [[53, 53], [9092]]


def test_the_driver_s_account_takes_the_role_that_the_service_s_and_the_executors_does(tools: Tools) -> None:
    role = "arn:aws:iam::123456789012:role/orders"
    given = ("--set", f"serviceAccount.annotations.role={role},serviceAccount.labels.use=identity")
    text = template(tools, "helm4", *given, files=[CHART / "ci/executors-values.yaml"])
    accounts = [each["metadata"] for each in yaml.safe_load_all(text) if each and each["kind"] == "ServiceAccount"]
    assert {each["name"] for each in accounts} == {"orders-kunicorn", "orders-kunicorn-pipeline"}
    assert [(each["annotations"], each["labels"]["use"]) for each in accounts] == [({"role": role}, "identity")] * 2


def test_the_alert_rules_carry_group_runbook_and_overrides(rendered: Callable[[str], Rendered]) -> None:
    groups = rendered("monitoring").only("PrometheusRule")["spec"]["groups"]
    rules = {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}
    assert "KunicornSupervisorSlow" not in rules
    ours = 'namespace="shop", group="orders", release="orders-kunicorn"'
    assert rules["KunicornNoMembers"]["expr"] == f"absent(kafka_consumer_group_info{{{ours}}})"
    high = rules["KunicornLagHigh"]
    assert (high["for"], high["labels"]) == (
        "2m",
        {"severity": "critical", "release": "orders-kunicorn", "team": "orders"},
    )
    assert high["annotations"]["runbook_url"] == "https://runbooks.example.com/kunicorn/KunicornLagHigh.md"


@pytest.mark.parametrize(
    ("pods", "rings"),
    [
        ("replicaCount=1", True),
        ("replicaCount=0", False),
        ("replicaCount=0,autoscaling.keda.enabled=true", True),
        ("autoscaling.keda.enabled=true,autoscaling.minReplicas=0", False),
    ],
)
def test_nobody_is_paged_for_members_that_the_values_want_none_of(tools: Tools, pods: str, rings: bool) -> None:
    given = ("--set", f"prometheusRule.enabled=true,{pods}", "-s", "templates/prometheusrule.yaml")
    assert ("KunicornNoMembers" in template(tools, "helm4", *given, files=[EXAMPLE])) == rings


def test_two_releases_have_a_dashboard_each_and_the_fleet_has_one(tools: Tools, tmp_path: Path) -> None:
    def text(release: str) -> str:
        shown: list[str | Path] = [
            "template",
            release,
            CHART,
            "-f",
            CHART / "ci/monitoring-values.yaml",
            "-s",
            "templates/dashboard.yaml",
        ]
        return tools.run("helm4", *shown, "--set", f"config.group.id={release}").stdout

    one, other = (
        {name: json.loads(page) for name, page in release.only("ConfigMap")["data"].items()}
        for release in judged(tools, text("orders"), text("refunds"), scratch=tmp_path)
    )
    assert set(one) & set(other) == {"kunicorn-fleet.json"}, "each file would overwrite the other's"
    assert one["kunicorn-fleet.json"] == other["kunicorn-fleet.json"]
    (own,) = (page for name, page in one.items() if name != "kunicorn-fleet.json")
    (others,) = (page for name, page in other.items() if name != "kunicorn-fleet.json")
    assert own["uid"] != others["uid"]
    assert len(own["uid"]) <= 40, "Grafana's limit"
    (group,) = (each for each in own["templating"]["list"] if each["name"] == "group")
    assert group["current"]["value"] == ["orders"]


@pytest.mark.parametrize("monitor", ["podMonitor", "serviceMonitor"])
def test_a_release_s_dashboard_asks_for_its_own_series_where_the_chart_s_monitor_tells_them(
    tools: Tools, monitor: str
) -> None:
    """In another namespace there may be a group of the same name."""

    def queries(*sets: str) -> list[str]:
        given = [word for each in ("dashboard.enabled=true", *sets) for word in ("--set", each)]
        text = template(tools, "helm4", *given, "-s", "templates/dashboard.yaml", files=[EXAMPLE])
        (page,) = yaml.safe_load(text)["data"].values()
        shown = json.loads(page)
        asked = [each["query"]["query"] for each in shown["templating"]["list"] if each["type"] == "query"]
        panels = [*shown["panels"], *(inner for each in shown["panels"] for inner in each.get("panels", ()))]
        return [*asked, *(target["expr"] for panel in panels for target in panel.get("targets", ()))]

    every, own = queries(), queries(f"{monitor}.enabled=true")
    assert len(own) == len(every) > 60
    ours = 'namespace="shop", release="orders-kunicorn"'
    series = [each for asked in own for each in re.findall(r"(?:kunicorn|kafka|messaging)_\w+[^\w]", asked)]
    assert [each for each in series if not each.endswith("{")] == []
    assert sum(asked.count("{" + ours) for asked in own) == len(series)
    assert [asked for asked in every if "release=" in asked] == [], "nobody adds that label elsewhere"


def test_the_notes_name_the_commands_for_this_release(tools: Tools) -> None:
    values = CHART / "ci/static-values.yaml"
    done = tools.run("helm4", "install", "shop", CHART, "--namespace", "prod", "--dry-run=client", "-f", values)
    notes = done.stdout.partition("NOTES:")[2]
    assert 'members of the group "orders"' in notes
    assert "kubectl --namespace prod rollout status statefulset/shop-kunicorn" in notes
    scaled, waited, left = re.findall(r"^  kubectl .* (?:scale|wait|exec) .*$", notes, flags=re.MULTILINE)
    assert scaled.endswith("scale statefulset/shop-kunicorn --replicas=2")
    assert " wait --for=delete pod/shop-kunicorn-2 " in waited, "a member that still drains would lose its partitions"
    assert left.endswith("exec shop-kunicorn-0 -- kunicorn leave --yes --instance shop-kunicorn-2")
    done = tools.run("helm4", "install", "shop", CHART, "--dry-run=client", "-f", values, "--set", "replicaCount=1")
    assert "kunicorn leave" not in done.stdout, "nobody is left to say it"


def test_the_notes_tell_what_keda_does_not_know_in_its_own_namespace(tools: Tools) -> None:
    """It would get no lag: pods would never be more, and with minReplicas 0 none would begin."""

    def notes(*servers: str, keda: str = "true") -> str:
        given = f"config.kafka.bootstrap_servers={{{','.join(servers)}}},autoscaling.keda.enabled={keda}"
        command = ("install", "shop", CHART, "--namespace", "prod", "--dry-run=client", "-f", EXAMPLE)
        done = tools.run("helm4", *command, "--set", given)
        assert done.returncode == 0, done.stderr
        return done.stdout.partition("NOTES:")[2]

    said = notes("kafka:9092", "kafka.kafka:9092")
    assert "KEDA asks kafka:9092 from its own namespace" in said
    assert "kafka.prod.svc:9092" in said
    assert "KEDA" not in notes("kafka.kafka:9092", "10.0.0.7:9092", "[fd00::1]:9092")
    assert "KEDA" not in notes("kafka:9092", keda="false")


@pytest.mark.parametrize(
    ("directory", "warned"),
    [
        (None, True),
        ("runs", True),
        ("s3://runs/a", False),
        ("/data", False),
        ("/data/a", False),
        ("file:///data/a", False),
        ("/database", True),
        ("file:///runs", True),
        ("/scratch/a", True),
    ],
)
def test_the_notes_warn_of_a_backfill_whose_run_is_lost_with_its_pod(
    tools: Tools, directory: str | None, warned: bool
) -> None:
    given = ["--set", "extraVolumeMounts[0].mountPath=/data,extraVolumeMounts[0].name=data"]
    given += ["--set", "extraVolumeMounts[1].mountPath=/scratch,extraVolumeMounts[1].name=scratch"]
    given += ["--set-json", 'extraVolumes=[{"name": "scratch", "emptyDir": {}}]']
    given += ["--set", f"config.pipeline.directory={directory}"] if directory else []
    files: list[str | Path] = ["-f", EXAMPLE, "--set", "pipelines.replay.command=backfill"]
    done = tools.run("helm4", "install", "shop", CHART, "--namespace", "prod", "--dry-run=client", *files, *given)
    notes = done.stdout.partition("NOTES:")[2]
    assert ("pipelines.replay: config.pipeline.directory" in notes) == warned, done.stderr
