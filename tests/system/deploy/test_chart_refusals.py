"""Values that cannot work are refused by Helm, with the key's name and what would be right."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.charts import CHART, EXAMPLE, HELMS, NEWER_BY_DAY, Refused, template
from tests.deploy.tools import Tools

_SASL = "config.kafka.security_protocol=SASL_SSL"
_PLAIN = (_SASL, "config.kafka.sasl_mechanism=PLAIN", "config.kafka.sasl_username=orders")
_OAUTH = (_SASL, "config.kafka.sasl_mechanism=OAUTHBEARER")
_PROVIDER = (*_OAUTH, "config.kafka.sasl_oauthbearer_token_provider=shop.kafka:token")
CONTRADICTIONS: tuple[tuple[list[str], str], ...] = (
    (["config.group.drain_timeout_ms=60000"], "config.group.drain_timeout_ms + commit_timeout_ms + 10 s = 75 s"),
    (["lifecycle.preStop.sleep.seconds=6"], "lifecycle.preStop.sleep.seconds + config.group.drain_timeout_ms + comm"),
    (["membership.static=true", "config.group.session_timeout_ms=75000"], "session_timeout_ms = 75000: not above"),
    (
        ["membership.static=true", "config.group.session_timeout_ms=90000", "autoscaling.hpa.enabled=true"],
        "membership.static beside autoscaling",
    ),
    (["autoscaling.keda.enabled=true", "autoscaling.hpa.enabled=true"], "two that set the same number of pods"),
    (["autoscaling.keda.enabled=true", "autoscaling.minReplicas=9"], "autoscaling.minReplicas = 9: above"),
    (["autoscaling.hpa.enabled=true", "autoscaling.minReplicas=0"], "cannot start the first pod"),
    (
        ["autoscaling.keda.enabled=true", "autoscaling.scaleDownStabilizationSeconds=30"],
        "autoscaling.scaleDownStabilizationSeconds = 30: shorter than terminationGracePeriodSeconds = 45",
    ),
    (
        ["autoscaling.hpa.enabled=true", "config.group.id=orders:v1"],
        'config.group.id = "orders:v1": not what Kubernetes takes for a label\'s value',
    ),
    (["autoscaling.hpa.enabled=true", f"config.group.id={'o' * 64}"], "the HPA would find no metric by it"),
    (
        ["autoscaling.hpa.enabled=true", "terminationGracePeriodSeconds=3601"],
        "terminationGracePeriodSeconds = 3601 beside autoscaling: Kubernetes lets a scale-down wait for 3600 s at most",
    ),
    (["maxPartitions=7", "autoscaling.keda.enabled=true"], "lower autoscaling.maxReplicas"),
    (
        ["maxPartitions=8", "replicaCount=3", "config.workers.count=null", "resources.limits.cpu=2500m"],
        "3 pods × 3 workers = 9",
    ),
    (["config.workers.count=null"], "config.workers.count: not set, and there is no resources.limits.cpu"),
    (["config.workers.count=null", "resources.limits.cpu=0"], "config.workers.count: not set"),
    (["config.assign.partitions={orders}", "replicaCount=2"], "every pod would handle the same partitions"),
    (["config.assign.partitions={orders}", "config.assign.stop=end"], 'config.assign.stop = "end"'),
    (
        ["resources.limits.memory=1Gi", "config.workers.count=16"],
        "resources.limits.memory = 1Gi: below what the pod needs, (16 workers + 1 that replaces another)",
    ),
    (["resources.limits.memory=1109Mi"], "+ 150 = 1110Mi; the kernel would kill workers"),
    (
        ["config.workers.count=null", "resources.limits.cpu=5", "resources.limits.memory=2069Mi"],
        "(5 workers + 1 that replaces another) × (config.workers.memory_per_worker_mb + memory.handlerMb) + 150 = 2070",
    ),
    (["resources.limits.memory=1110Mi", "config.workers.max_rss_mb=600"], "= 1950Mi"),
    (["config.http.host=127.0.0.1"], "the kubelet could not reach the probes"),
    (["auth.sasl.existingSecret=kafka", "autoscaling.keda.enabled=true"], "auth.sasl.usernameKey: KEDA takes"),
    (["autoscaling.keda.enabled=true", *_PLAIN], "auth.sasl.existingSecret: KEDA takes user and password"),
    (["autoscaling.keda.enabled=true", *_OAUTH], "auth.oauthbearer.existingSecret: KEDA takes the client's secret"),
    (
        ["autoscaling.keda.enabled=true", "auth.tls.existingSecret=ca", *_PROVIDER],
        "config.kafka.sasl_oauthbearer_token_provider: KEDA cannot call it",
    ),
    (
        [
            f"fullnameOverride={'o' * 40}",
            "pipelines.every-night.command=export",
            "pipelines.every-night.schedule=@daily",
            "pipelines.every-nights.command=export",
            "pipelines.every-nights.schedule=@daily",
        ],
        "pipelines.every-nights: longer than the 11 characters that Kubernetes leaves the name of a CronJob",
    ),
    (
        ["pipelines.live.command=stream", "config.pipeline.directory=/tmp/runs"],
        'config.pipeline.directory = "/tmp/runs" is lost with the pod, and the stream\'s checkpoint with it',
    ),
)
"""Each refused by itself: with others beside it, it would not come up, or be told in other words."""

TOGETHER: tuple[tuple[list[str], str], ...] = (
    (["terminationGracePeriodSeconds=39"], "terminationGracePeriodSeconds = 39: shorter than a stop may take"),
    (["config.group.group_instance_id=orders-0"], "config.group.group_instance_id: all pods would have the same"),
    (["membership.static=true"], "config.group.session_timeout_ms = 45000: not above"),
    (["maxPartitions=5", "replicaCount=3"], "maxPartitions = 5: fewer than 3 pods × 2 workers = 6"),
    ([r"podLabels.app\.kubernetes\.io/component=api"], "podLabels.app.kubernetes.io/component: the chart's own"),
    ([r"commonLabels.app\.kubernetes\.io/name=shop"], "commonLabels.app.kubernetes.io/name: the chart's own"),
    (["resources.limits.memory=1163919359"], "resources.limits.memory = 1163919359: below"),
    (
        ["extraEnv[0].name=KUNICORN_GROUP__DRAIN_TIMEOUT_MS", "extraEnv[0].value=90000s"],
        "extraEnv: KUNICORN_GROUP__DRAIN_TIMEOUT_MS is a setting that the chart reckons with; name it as config.group",
    ),
    (
        ["extraEnv[1].name=KUNICORN_GROUP__ID", "extraEnv[1].value=refunds"],
        "extraEnv: KUNICORN_GROUP__ID is a setting that the chart reckons with; name it as config.group.id, or grace",
    ),
    (
        ["extraEnv[2].name=KUNICORN_HTTP__TLS_CERTIFICATE_FILE", "extraEnv[2].value=/tls/tls.crt"],
        "extraEnv: KUNICORN_HTTP__TLS_CERTIFICATE_FILE is a setting that the chart reckons with",
    ),
    (
        ["extraEnv[3].name=KUNICORN_GROUP__GROUP_INSTANCE_ID", "extraEnv[3].value=orders"],
        "extraEnv: KUNICORN_GROUP__GROUP_INSTANCE_ID is the same in all pods, and what config.group.group_instance_id",
    ),
    (
        ["extraEnv[4].name=KUNICORN_PRODUCING__TRANSACTIONAL_ID_PREFIX", "extraEnv[4].value=orders"],
        "extraEnv: KUNICORN_PRODUCING__TRANSACTIONAL_ID_PREFIX is the same in all pods",
    ),
    (["resources.limits.cpu=499m"], "resources.requests.cpu = 500m: above resources.limits.cpu = 499m"),
    (["pipeline.resources.limits.memory=2047Mi"], "pipeline.resources.requests.memory = 2Gi: above pipeline.resource"),
    (["config.producing.transactional_id_prefix=orders"], "each would fence the others' producers"),
    (["auth.schemaRegistry.existingSecret=registry"], "config.schema_registry.url is not set"),
    (["auth.otlp.existingSecret=collector"], "auth.otlp.existingSecret: for no collector, as config.otlp.enabled"),
    (["networkPolicy.enabled=true"], "networkPolicy.ingressFrom: empty, which Kubernetes takes for everybody"),
    (["config.http.enabled=false"], "config.http.enabled = false: there would be no probes"),
    (
        [f"pipelines.{'a' * 39}.command=backfill"],
        'longer than the 38 characters that Kubernetes leaves the name of a Job behind "orders-kunicorn"',
    ),
    (["pipelines.live.command=stream"], "pipelines.live: config.pipeline.directory (not set) is lost with the pod"),
    (
        ["pipelines.once.command=export", "pipelines.once.timeZone=Europe/Berlin"],
        "pipelines.once.timeZone: without pipelines.once.schedule there is no time of day",
    ),
    (
        ["prometheusRule.enabled=true", "prometheusRule.slo.objectivePercent=93"],
        "prometheusRule.slo.objectivePercent = 93: KunicornLagBudgetBurning rings at 14.4 times",
    ),
    (["prometheusRule.disabled={KunicornLaggHigh}"], 'prometheusRule.disabled: there is no alert "KunicornLaggHigh"'),
    (["prometheusRule.overrides.LagHigh.for=10m"], 'prometheusRule.overrides: there is no alert "LagHigh"'),
    (["podMonitor.enabled=true", "serviceMonitor.enabled=true"], "each pod would be scraped twice"),
    (
        ["podMonitor.enabled=true", "podMonitor.interval=5s"],
        "podMonitor.scrapeTimeout = 10s: longer than podMonitor.interval = 5s",
    ),
    (
        ["serviceMonitor.enabled=true", "serviceMonitor.interval=2m1s", "serviceMonitor.scrapeTimeout=121001ms"],
        "serviceMonitor.scrapeTimeout = 121001ms: longer than serviceMonitor.interval = 2m1s",
    ),
    (
        ["prometheusRule.enabled=true", "serviceMonitor.enabled=true", "serviceMonitor.interval=2m1s"],
        "serviceMonitor.interval = 2m1s: Prometheus looks five minutes back",
    ),
)
"""Of keys that have nothing to do with one another."""

UNKNOWN = {
    "config.group.sesion_timeout_ms=90000": "sesion_timeout_ms",
    "config.grup.id=orders": "grup",
    "config.kafka.sasl_password=hunter2": "sasl_password",
    "config.schema_registry.password=hunter2": "schema_registry",
    "config.otlp.headers.authorization=hunter2": "headers",
    "config.producing.delivery=exactly_once": "delivery",
    "config.group.session_timeout_ms=soon": "session_timeout_ms",
    "config.workers.count=0": "workers",
    "config.group.group_protocol=modern": "group_protocol",
    "config.kafka.bootstrap_servers=null": "bootstrap_servers",
    "replicas=3": "replicas",
    "updateStrategy.maxSurge=much": "maxSurge",
    "pipelines.nightly.command=forward": "nightly",
    "pipelines.Nightly.command=stream": "Nightly",
}
"""Values, and a word that no other of them has in its refusal."""


def refusal(tools: Tools, helm: str, sets: Iterable[str]) -> str:
    """What Helm says to these values."""
    with pytest.raises(Refused) as refused:
        template(tools, helm, *(each for value in sets for each in ("--set", value)), files=[EXAMPLE])
    return str(refused.value)


@pytest.mark.parametrize(("sets", "words"), CONTRADICTIONS, ids=[words for _, words in CONTRADICTIONS])
def test_contradictory_values_are_refused_by_name(tools: Tools, sets: list[str], words: str) -> None:
    assert words in refusal(tools, "helm4", sets)


@pytest.mark.parametrize("helm", HELMS)
def test_all_contradictions_are_told_at_once(tools: Tools, helm: str) -> None:
    said = refusal(tools, helm, [each for sets, _ in TOGETHER for each in sets])
    assert [words for _, words in TOGETHER if words not in said] == []
    lines = said.partition("do not go together:\n")[2].partition("\n\n")[0].splitlines()
    assert len(lines) == len(TOGETHER), f"none is told because of another: {said}"


@pytest.mark.parametrize("helm", HELMS)
def test_values_that_do_not_exist_or_are_of_the_wrong_type_are_refused_by_name(tools: Tools, helm: str) -> None:
    said = refusal(tools, helm, UNKNOWN)
    assert [value for value, word in UNKNOWN.items() if word not in said] == []
    assert "hunter2" not in said, "secrets are not shown"


def test_a_release_that_names_nothing_is_told_all_that_it_must_name(tools: Tools) -> None:
    with pytest.raises(Refused) as refused:
        template(tools, "helm4")
    needed = re.findall(r"^config\.(\S+): not set", str(refused.value), flags=re.MULTILINE)
    assert needed == ["kafka.bootstrap_servers", "group.id", "group.topics", "handler.entrypoint"]


_EVERYTHING = (
    "podMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true,pipelines.once.command=export,"
    "networkPolicy.enabled=true,networkPolicy.ingressFrom[0].podSelector.matchLabels.a=b,autoscaling.keda.enabled=true,"
    "auth.sasl.existingSecret=login,auth.sasl.usernameKey=user"
)


def tables(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Names of the tables among values, two deep."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield above + name
            yield from tables(value, f"{name}.") if not above else ()


@pytest.mark.parametrize("helm", HELMS)
def test_a_table_with_nothing_below_it_is_none_or_is_refused_by_its_name(tools: Tools, helm: str) -> None:
    """YAML reads `resources:` as null where all below it is a comment. A refusal names all such tables of one depth; a
    deeper one that is null beside them would be hidden."""
    refused: set[str] = set()
    every = list(tables(yaml.safe_load((CHART / "values.yaml").read_text())))
    for names in ([each for each in every if "." not in each], [each for each in every if "." in each]):
        said = refusal(tools, helm, [_EVERYTHING, *nulls(names)])
        named = set(re.findall(r"^(\S+): null, as", said, flags=re.MULTILINE))
        # Without pipelines no template reads what is below `pipeline`; the number of workers is told as it is, below.
        with_none = [each for each in names if each not in {*named, "pipelines", "config.workers"}]
        assert template(tools, helm, "--set", ",".join([_EVERYTHING, *nulls(with_none)]), files=[EXAMPLE])
        refused |= named
    assert template(tools, helm, "--set", f"{_EVERYTHING},pipelines=null", files=[EXAMPLE])
    assert "config.workers.count: not set" in refusal(tools, helm, [_EVERYTHING, "config.workers=null"])
    assert {"resources", "probes", "auth.otlp", "autoscaling.keda", "commonLabels"} <= refused <= set(every)


@pytest.mark.parametrize("helm", NEWER_BY_DAY)
def test_values_of_an_older_chart_that_an_upgrade_keeps_are_told_for_what_they_are(
    tools: Tools, tmp_path: Path, helm: str
) -> None:
    """With --reuse-values Helm gives the new chart the defaults of the old one: nobody has written a null."""
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    older = yaml.safe_load((chart / "values.yaml").read_text())
    del older["dashboard"]
    (chart / "values.yaml").write_text(yaml.safe_dump(older))
    said = tools.run(helm, "template", "orders", chart, "--is-upgrade", "-f", EXAMPLE).stderr
    assert "dashboard: null, as there is nothing below it" in said
    assert "upgrade with --reset-then-reuse-values" in said


def nulls(tables: Iterable[str]) -> list[str]:
    """Each of them with nothing below it."""
    return [f"{table}=null" for table in tables]


LARGE = """
config:
  handler:
    options: {account: 123456789012345678, accounts: {fees: [1, -9007199254740993]}, far: 1.0e+300}
"""


@pytest.mark.parametrize("helm", HELMS)
def test_numbers_that_helm_changes_are_refused_and_not_handed_to_the_handler(
    tools: Tools, tmp_path: Path, helm: str
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(LARGE)
    with pytest.raises(Refused) as refused:
        template(tools, helm, files=[EXAMPLE, values])
    named = re.findall(r"^config\.handler\.options\.(\S+): a whole number", str(refused.value), flags=re.MULTILINE)
    assert named == ["account", "accounts.fees[1]", "far"]
    values.write_text("config: {handler: {options: {account: 9007199254740991, other: '123456789012345678'}}}")
    assert '"account" = 9007199254740991' in template(tools, helm, files=[EXAMPLE, values])
    assert "a whole number" in refusal(tools, helm, ["config.handler.options.account=123456789012345678"])


def test_the_least_that_is_allowed_is_allowed(tools: Tools) -> None:
    sets: list[Any] = ["--set", "terminationGracePeriodSeconds=40", "--set", "maxPartitions=2"]
    assert template(tools, "helm4", *sets, files=[EXAMPLE])
    for enough in ("1110Mi", "1163919360", "1.5Gi", "1164M"):
        assert template(tools, "helm4", "--set", f"resources.limits.memory={enough}", files=[EXAMPLE])
    own = ["--set", "autoscaling.keda.authenticationRef=mine", "--set", "autoscaling.keda.enabled=true"]
    for login in (_PLAIN, _PROVIDER):
        assert template(tools, "helm4", *own, *(each for value in login for each in ("--set", value)), files=[EXAMPLE])
    named = ["--set", f"pipelines.{'a' * 38}.command=backfill", "--set", f"pipelines.{'b' * 36}.schedule=@daily"]
    assert template(tools, "helm4", *named, "--set", f"pipelines.{'b' * 36}.command=export", files=[EXAMPLE])
    scaled = ["--set", "autoscaling.hpa.enabled=true", "--set"]
    for group in (
        f"config.group.id={'o' * 63}",
        "config.group.id=o",
        "config.group.id=a:b,autoscaling.hpa.metricLabels.g=ab",
    ):
        assert template(tools, "helm4", *scaled, group, files=[EXAMPLE])
    stream = ["--set", "pipelines.live.command=stream", "--set"]
    in_a_volume = (
        "config.pipeline.directory=runs,extraVolumeMounts[0].name=runs,extraVolumeMounts[0].mountPath=/tmp/runs/"
    )
    for kept in ("config.pipeline.directory=s3://runs", in_a_volume):
        assert template(tools, "helm4", *stream, kept, files=[EXAMPLE])
    ruled = ["--set", "prometheusRule.enabled=true", "--set-json"]
    for objective in ('{"slo": {"objectivePercent": 93.1}}', '{"slo": {"objectivePercent": 90}, "disabled": ["%s"]}'):
        given = f"prometheusRule={objective.replace('%s', 'KunicornLagBudgetBurning')}"
        assert template(tools, "helm4", *ruled, given, files=[EXAMPLE])
    scraped = "podMonitor.enabled=true,podMonitor.interval=1m30s,podMonitor.scrapeTimeout=90s"
    assert template(tools, "helm4", "--set", scraped, files=[EXAMPLE])
    seldom = "podMonitor.enabled=true,podMonitor.interval=5m,prometheusRule.enabled=false"
    at_most = "podMonitor.enabled=true,podMonitor.interval=2m,prometheusRule.enabled=true"
    for unalarmed in (seldom, at_most):
        assert template(tools, "helm4", "--set", unalarmed, files=[EXAMPLE])
    assert template(tools, "helm4", "--set", "lifecycle.preStop.sleep.seconds=5", files=[EXAMPLE])
    for unheard in ('{"preStop": null}', '{"preStop": {"exec": {"command": ["true"]}}}', "null"):
        assert template(tools, "helm4", "--set-json", f"lifecycle={unheard}", files=[EXAMPLE])
    for allowed in ("resources.limits.cpu=0.5", "resources.limits.cpu=null", "pipeline.resources.limits.memory=2048Mi"):
        assert template(tools, "helm4", "--set", allowed, files=[EXAMPLE])
    for free in ("KUNICORN_GROUP__HEARTBEAT_INTERVAL_MS", "MY_KUNICORN_WORKERS__COUNT"):
        assert template(tools, "helm4", "--set-string", f"extraEnv[0].name={free},extraEnv[0].value=1", files=[EXAMPLE])
    of_the_pod = (
        '[{"name": "%s", "value": "orders-$(POD)"}, {"name": "%s", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]'
    )
    its_own = of_the_pod % ("KUNICORN_GROUP__GROUP_INSTANCE_ID", "KUNICORN_PRODUCING__TRANSACTIONAL_ID_PREFIX")
    assert template(tools, "helm4", "--set-json", f"extraEnv={its_own}", files=[EXAMPLE])
    static = ["--set", "membership.static=true", "--set", "config.group.session_timeout_ms=75001"]
    assert template(tools, "helm4", *static, files=[EXAMPLE])
