"""The alert rules, run by promtool over series as a member shows them: each fires for its cause, and nothing else does;
none fires in a healthy hour, or for what passes by itself.
"""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.core import TyperGroup

from kunicorn.commands.cli import app
from kunicorn.observe.generate import expressions
from kunicorn.settings.assign import CLIENTS_GROUP
from tests.deploy.charts import CHART, EXAMPLE, VALUES
from tests.deploy.runbooks import RUNBOOKS, shown
from tests.deploy.tools import Tools

RULES = CHART / "alerts" / "rules.yaml"
NAMES = re.findall(r"- alert: (\w+)", RULES.read_text())

_WHERE = 'namespace="shop",job="orders",pod="orders-1",instance="10.0.0.1:9400",group="orders",release="RELEASE"'
_GROUP = _WHERE
_PARTITION = f'{_GROUP},topic="orders",partition="0"'

LAG_SECONDS = f"kafka_consumer_lag_seconds{{{_PARTITION}}}"
OLDEST = f'kafka_consumer_max_lag_seconds{{{_GROUP},topic="orders"}}'
COMMITTED = f"kafka_consumer_committed_offset{{{_PARTITION}}}"
POSITION = f"kafka_consumer_position{{{_PARTITION}}}"
LOG_END = f"kafka_consumer_log_end_offset{{{_PARTITION}}}"
HALTED = f'kunicorn_partitions{{{_GROUP},state="halted"}}'
INFLIGHT = f"kunicorn_inflight_oldest_seconds{{{_GROUP}}}"
DEAD_LETTERS = f'kunicorn_dead_letters_total{{{_WHERE},topic="orders",reason="attempts"}}'
WAITING = f'kunicorn_partitions_waiting{{{_GROUP},waits_for="dead_letter"}}'
RETRY = f'kunicorn_partitions_waiting{{{_GROUP},waits_for="retry_topic"}}'
DELAYED = f'kunicorn_partitions_waiting{{{_GROUP},waits_for="delay"}}'
DELIVERY = f'kunicorn_partitions_waiting{{{_GROUP},waits_for="delivery"}}'
CIRCUIT = f'kunicorn_circuit_breaker_open{{{_GROUP},topic="orders"}}'
RESETS = f'kunicorn_offset_resets_total{{{_WHERE},reason="below the log"}}'
INFO = f'kafka_consumer_group_info{{{_GROUP},protocol="classic"}}'
READY = f"kunicorn_ready{{{_WHERE}}}"
LIVE = f"kunicorn_live{{{_WHERE}}}"
LEAVING = f'kunicorn_group_state{{{_GROUP},state="leaving"}}'
HEARTBEAT = f"kafka_consumer_last_heartbeat_seconds{{{_GROUP}}}"
GENERATION = f"kafka_consumer_group_generation{{{_GROUP}}}"
LOST = f"kafka_consumer_partitions_lost_total{{{_WHERE}}}"
LAST_COMMIT = f"kunicorn_last_commit_seconds{{{_GROUP}}}"
UNCOMMITTED = f"kunicorn_uncommitted_partitions{{{_GROUP}}}"
RESTARTS = f'kunicorn_worker_restarts_total{{{_WHERE},reason="SIGKILL"}}'
UPTIME = f"kunicorn_uptime_seconds{{{_WHERE}}}"
CERTIFICATE = f"kunicorn_tls_certificate_expiry_timestamp_seconds{{{_WHERE}}}"
UP = f"up{{{_WHERE}}}"
LOOP_LAG = f"kunicorn_event_loop_lag_seconds{{{_WHERE}}}"

HEALTHY: Mapping[str, str] = {
    LAG_SECONDS: "0x90",
    OLDEST: "0x90",
    COMMITTED: "0+600x90",
    POSITION: "0+600x90",
    LOG_END: "0+600x90",
    HALTED: "0x90",
    INFLIGHT: "0.1x90",
    DEAD_LETTERS: "0x90",
    WAITING: "0x90",
    DELIVERY: "0x90",
    CIRCUIT: "0x90",
    INFO: "1x90",
    READY: "1x90",
    LIVE: "1x90",
    HEARTBEAT: "0.5x90",
    f"kunicorn_session_timeout_seconds{{{_GROUP}}}": "45x90",
    GENERATION: "7x90",
    LOST: "0x90",
    LAST_COMMIT: "3x90",
    UNCOMMITTED: "1x90",
    UPTIME: "0+60x90",
    LOOP_LAG: "0.01x90",
    CERTIFICATE: "99999999x90",
    UP: "1x90",
}
"""A sample a minute. `a+bx90`: from a, b more each; `_x5`: absent five times."""


@dataclass(frozen=True)
class Case:
    """What is different from a healthy member, and what fires at that minute."""

    name: str
    minute: int
    firing: Collection[str] = ()
    series: Mapping[str, str] = field(default_factory=dict)
    silent_for: str = "90m"
    """How long nothing may have fired, if nothing is to fire."""
    every: int = 1
    """Minutes between two samples."""


def behind(seconds: str) -> Mapping[str, str]:
    """The topic's one partition is so far behind."""
    return {LAG_SECONDS: seconds, OLDEST: seconds}


_FIRST_RESET = {RESETS: "_x50 1x40"}
_SCRAPE_FAILS = {
    RESETS: "1x60 stale 1x29",
    DEAD_LETTERS: "5x60 stale 5x29",
    RESTARTS: "9x60 stale 9x29",
    UPTIME: "90000+60x60 stale 93720+60x28",
}
_PARTITION_SERIES = (LAG_SECONDS, COMMITTED, POSITION, LOG_END)

FIRING = (
    Case("five minutes behind", 15, ["KunicornLagHigh"], behind("400x90")),
    Case(
        "five minutes behind, with more partitions than have series of their own",
        15,
        ["KunicornLagHigh"],
        {**dict.fromkeys(_PARTITION_SERIES, "_x90"), OLDEST: "400x90"},
    ),
    Case(
        "further behind every minute, with more partitions than have series of their own",
        14,
        ["KunicornLagGrowing"],
        {**dict.fromkeys(_PARTITION_SERIES, "_x90"), OLDEST: "0+30x90"},
    ),
    Case("further behind every minute", 14, ["KunicornLagGrowing"], behind("0+30x90")),
    Case(
        "nothing committed while records come",
        17,
        ["KunicornPartitionStalled"],
        {COMMITTED: "9x90", POSITION: "9x90", **behind("200x90")},
    ),
    Case(
        "what the handler calls is away, and lag is what follows",
        30,
        ["KunicornCircuitBreakerOpen"],
        {**behind("0+30x90"), CIRCUIT: "2x90", COMMITTED: "9x90", POSITION: "9x90"},
    ),
    Case("a record cannot be handled", 3, ["KunicornPartitionHalted"], {HALTED: "1x90"}),
    Case("a handler call without end", 8, ["KunicornHandlerStuck"], {INFLIGHT: "0+60x90"}),
    Case("dead letters", 12, ["KunicornDeadLetters"], {DEAD_LETTERS: "0x10 5x80"}),
    Case("dead letters, the first of the topic", 12, ["KunicornDeadLetters"], {DEAD_LETTERS: "_x10 5x80"}),
    Case("the dead-letter topic takes nothing", 6, ["KunicornDeadLettersBlocked"], {WAITING: "1x90"}),
    Case("a retry topic takes nothing", 6, ["KunicornDeadLettersBlocked"], {RETRY: "1x90"}),
    Case("outputs that no broker takes", 6, ["KunicornDeliveryBlocked"], {DELIVERY: "6x90"}),
    Case("positions that are not in the log", 12, ["KunicornOffsetsReset"], {RESETS: "_x10 1x80"}),
    Case("positions that are not in the log, the first of an old pod", 52, ["KunicornOffsetsReset"], _FIRST_RESET),
    Case("no pod answers", 23, ["KunicornNoMembers"], {INFO: "1x10"}),
    Case("no pod is there, for two minutes", 12, ["KunicornNoMembers"], {INFO: "1x10 stale"}),
    Case("a pod that does not start", 2, ["KunicornPodSilent"], {UP: "0x90"}),
    Case("not a member", 11, ["KunicornNotReady"], {READY: "0x90"}),
    Case("not restarted", 6, ["KunicornNotLive"], {LIVE: "0x90"}),
    Case("no heartbeat for half a session", 11, ["KunicornHeartbeatLate"], {HEARTBEAT: "0.5x10 23x80"}),
    Case("a rebalance every minute", 32, ["KunicornRebalanceStorm"], {GENERATION: "7+1x90"}),
    Case("partitions lost", 12, ["KunicornPartitionsLost"], {LOST: "0x10 3x80"}),
    Case("handled, not committed", 8, ["KunicornCommitsFailing"], {COMMITTED: "0x90", LAST_COMMIT: "0+60x90"}),
    Case(
        "handled, not committed, with more partitions than have series of their own",
        8,
        ["KunicornCommitsFailing"],
        {**dict.fromkeys(_PARTITION_SERIES, "_x90"), LAST_COMMIT: "0+60x90"},
    ),
    Case("handled, not committed, since the pod started", 8, ["KunicornCommitsFailing"], {LAST_COMMIT: "_x90"}),
    Case(
        "a partition whose handler keeps its offsets does not move",
        17,
        ["KunicornPartitionStalled"],
        {COMMITTED: "_x90", LAST_COMMIT: "_x90", UNCOMMITTED: "_x90", POSITION: "9x90", **behind("200x90")},
    ),
    Case("workers die", 15, ["KunicornWorkersDying"], {RESTARTS: "0x5 1x3 2x2 4x2 6x80"}),
    Case("all workers die between two scrapes", 12, ["KunicornWorkersDying"], {RESTARTS: "_x10 8x80"}),
    Case("the service ends again and again", 20, ["KunicornRestarting"], {UPTIME: "0+60x4 0+60x4 0+60x4 0+60x4"}),
    Case(
        "too far behind for a quarter of an hour",
        87,
        ["KunicornLagHigh", "KunicornLagBudgetBurning"],
        behind("0x70 400x20"),
    ),
    Case(
        "too far behind for as long as what the handler calls is away",
        87,
        ["KunicornCircuitBreakerOpen"],
        {**behind("0x70 400x20"), CIRCUIT: "0x70 2x20"},
    ),
    Case("a certificate that nobody renews", 20, ["KunicornCertificateExpires"], {CERTIFICATE: "600000x90"}),
    Case("a supervisor without CPU", 11, ["KunicornSupervisorSlow"], {LOOP_LAG: "0.9x90"}),
)

SILENT = (
    Case("a healthy hour", 60),
    Case("lag for five minutes", 20, (), behind("0x5 400x5 0x80")),
    Case("a group that begins with an old log", 60, (), behind("400x6 0x84")),
    Case("lag for five minutes of an hour", 85, (), behind("0x75 400x4 0x10"), silent_for="20m"),
    Case("lag that is being worked off", 30, (), behind("290-5x58 0x32")),
    Case(
        "a partition that is behind comes from another pod, and stays behind",
        60,
        (),
        {LAG_SECONDS: "_x10 200x80", OLDEST: "0x10 200x80"},
    ),
    Case("a circuit breaker opens for three minutes", 20, (), {CIRCUIT: "0x5 2x3 0x80"}),
    Case("a broker restarts and outputs wait", 20, (), {DELIVERY: "0x5 6x3 0x80"}),
    Case(
        "records of a retry topic wait for their time",
        60,
        (),
        {DELAYED: "6x90", COMMITTED: "9x90", POSITION: "9x90"},
    ),
    Case("nobody produces", 60, (), dict.fromkeys((COMMITTED, POSITION, LOG_END), "9x90")),
    Case("idle for hours, then a commit is old", 60, (), {LAST_COMMIT: "0+60x90", UNCOMMITTED: "0x90"}),
    Case(
        "the first record comes long after the start",
        60,
        (),
        {UNCOMMITTED: "0x30 1x0 0x58", LAST_COMMIT: "_x31 3x58"},
    ),
    Case(
        "all handlers keep their offsets",
        60,
        (),
        {COMMITTED: "_x90", LAST_COMMIT: "_x90", UNCOMMITTED: "_x90", **behind("20x90")},
    ),
    Case(
        "a handler keeps its offsets beside one for which nothing comes",
        60,
        (),
        {COMMITTED: "_x90", LAST_COMMIT: "0+60x90", UNCOMMITTED: "0x90", **behind("20x90")},
    ),
    Case(
        "transactions, committed when they are handled",
        60,
        (),
        {LAST_COMMIT: "_x90", UNCOMMITTED: "_x90", **behind("20x90")},
    ),
    Case("a rollout of ten pods", 25, (), {GENERATION: "7x5 9+2x8 27x80"}),
    Case("one worker dies", 20, (), {RESTARTS: "_x10 1x80"}),
    Case("workers died together, long ago", 60, (), {RESTARTS: "_x10 8x80"}, silent_for="30m"),
    Case("restarted once", 20, (), {UPTIME: "0+60x10 0+60x80"}),
    Case("a scrape fails, long after all that was ever counted", 85, (), _SCRAPE_FAILS, silent_for="20m"),
    Case("dead letters, long ago", 60, (), {DEAD_LETTERS: "0x10 5x80"}, silent_for="10m"),
    Case("one late heartbeat", 20, (), {HEARTBEAT: "0.5x10 20 0.5x80"}),
    Case("a pod that takes less than a minute to start", 20, (), {UP: "0x0 1x89"}),
    Case("what a pod that stops has in hand takes half an hour", 45, (), {READY: "1x10 0x30", LEAVING: "_x10 1x30"}),
    Case("starting", 5, (), {READY: "0x2 1x88"}),
)


def as_promtool_has_it(case: Case) -> dict[str, object]:
    """One entry of `tests`. ALERTS is the series that Prometheus writes of every alert."""
    series = {**HEALTHY, **case.series}
    firing = 'ALERTS{alertstate="firing"}'
    asked = firing if case.firing else f"last_over_time({firing}[{case.silent_for}])"
    expected = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in case.firing]
    return {
        "name": case.name,
        "interval": f"{case.every}m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f"count by (alertname) ({asked})",
                "eval_time": f"{case.minute}m",
                "exp_samples": expected,
            }
        ],
    }


def found_by_promtool(
    tools: Tools,
    directory: Path,
    tests: Sequence[Mapping[str, object]],
    rules: Sequence[Path] = (RULES,),
    **more: str,
) -> str:
    """What does not hold of the rules; nothing where all does. `more`: of the file of tests."""
    # JSON is YAML.
    file = directory / "cases.yaml"
    file.write_text(json.dumps({"rule_files": [str(each) for each in rules], "tests": tests, **more}))
    done = tools.run("promtool", "test", "rules", file)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("cases", [FIRING, SILENT], ids=["firing", "silent"])
def test_alerts_fire_for_their_causes_and_for_nothing_else(
    tools: Tools, tmp_path: Path, cases: tuple[Case, ...]
) -> None:
    assert found_by_promtool(tools, tmp_path, [as_promtool_has_it(case) for case in cases]) == ""


def test_a_budget_that_is_spent_in_small_parts_for_days_can_wait_for_the_morning(tools: Tools, tmp_path: Path) -> None:
    # Samples and rules every half hour: two good days, then a bad sample in every four hours.
    healthy = {name: values.replace("x90", "x200") for name, values in HEALTHY.items()}
    spent = {**healthy, **behind("0x96 " + "0x6 400x0 " * 12)}
    case = Case("a bad sample in eight", 178 * 30, ["KunicornLagBudgetBurningSlowly"], spent, every=30)
    assert found_by_promtool(tools, tmp_path, [as_promtool_has_it(case)], evaluation_interval="30m") == ""


def test_a_case_that_is_wrong_fails(tools: Tools, tmp_path: Path) -> None:
    wrong = as_promtool_has_it(Case("silent although a record cannot be handled", 3, [], {HALTED: "1x90"}))
    assert "KunicornPartitionHalted" in found_by_promtool(tools, tmp_path, [wrong])


@pytest.mark.parametrize("pod", ["orders-1", ""])
def test_an_alert_names_its_pod_as_kubectl_takes_it_and_where_there_is_none_the_address(
    tools: Tools, tmp_path: Path, pod: str
) -> None:
    address = "10.0.0.1:9400"
    labels = {**({"pod": pod} if pod else {}), "instance": address}
    series = ",".join(f'{name}="{value}"' for name, value in labels.items())
    (rule,) = (each for each in rules_as_written() if each.get("alert") == "KunicornPodSilent")
    summary = f"{pod or address} has not answered Prometheus for a minute"
    fired = {
        "exp_labels": {**labels, **rule["labels"]},
        "exp_annotations": {**rule["annotations"], "summary": summary},
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": f'up{{release="RELEASE",{series}}}', "values": "0x9"}],
        "alert_rule_test": [{"alertname": rule["alert"], "eval_time": "5m", "exp_alerts": [fired]}],
    }
    assert found_by_promtool(tools, tmp_path, [test]) == ""
    told = {each["alert"]: each["annotations"]["summary"] for each in rules_as_written() if "alert" in each}
    assert [alert for alert, said in told.items() if "}}{{" in said] == [], "a pod and its address would be one word"


def test_every_alert_has_a_case_that_fires_it() -> None:
    slow = {"KunicornLagBudgetBurningSlowly"}
    assert {alert for case in FIRING for alert in case.firing} | slow == set(NAMES)


def test_the_rules_are_well_formed(tools: Tools) -> None:
    done = tools.run("promtool", "check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_can_read_every_expression_of_the_dashboard(tools: Tools, tmp_path: Path) -> None:
    read = [expression.replace("$__rate_interval", "1m") for expression in expressions()]
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(read)]
    (tmp_path / "panels.yaml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = tools.run("promtool", "check", "rules", "--lint=none", tmp_path / "panels.yaml")
    assert done.returncode == 0, done.stderr


def test_every_alert_has_a_runbook_and_every_runbook_its_alert() -> None:
    pages = {file.stem for file in RUNBOOKS.glob("*.md")} - {"README"}
    assert {page for page in pages if page.startswith("Kunicorn")} == set(NAMES)
    index = (RUNBOOKS / "README.md").read_text()
    assert [page for page in pages if f"({page}.md)" not in index] == []


def rules_as_written() -> Sequence[Mapping[str, Any]]:
    """Every rule of the chart, as it is written."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alert_expressions() -> Mapping[str, str]:
    """The expression of each alert in one line, by its name."""
    return {rule["alert"]: " ".join(rule["expr"].split()) for rule in rules_as_written() if "alert" in rule}


def test_every_runbook_shows_the_query_that_led_there_what_to_do_and_when_not_to() -> None:
    queries = {page: [" ".join(each.split()) for each in blocks] for page, blocks in shown("promql").items()}
    assert {name: queries[name] for name in NAMES} == {name: [each] for name, each in alert_expressions().items()}
    for file in RUNBOOKS.glob("[!R]*.md"):
        headings = re.findall(r"^## (.*)$", file.read_text(), flags=re.MULTILINE)
        assert headings[-3:] == ["Look", "Repair", "When it may be ignored"], file
        assert shown("sh")[file.stem], file


def panels() -> Mapping[str, str]:
    """What each panel of the dashboards asks for, by its title."""
    found: dict[str, str] = {}
    for file in (CHART / "dashboards").glob("*.json"):
        waiting = list(json.loads(file.read_text())["panels"])
        while waiting:
            panel = waiting.pop()
            waiting += panel.get("panels", [])
            found[panel["title"]] = found.get(panel["title"], "") + str(panel.get("targets", ""))
    return found


@pytest.mark.parametrize(("alert", "expression"), alert_expressions().items())
def test_every_runbook_names_a_panel_that_shows_what_rang_where_there_is_one(alert: str, expression: str) -> None:
    rang, _, _ = expression.partition(" and on (")
    metrics = re.findall(r"\b(?:kunicorn_|kafka_consumer_|group:kunicorn_)[\w:]+", rang)
    showing = {title for title, asked in panels().items() if any(f"{metric}{{" in asked for metric in metrics)}
    page = (RUNBOOKS / f"{alert}.md").read_text()
    told = re.findall(r"^On the (?:release|fleet)'s dashboard: \*(.*)\*\.$", page, flags=re.MULTILINE)
    assert {*told} <= showing
    assert bool(told) == bool(showing), f"the dashboards show it: {showing}"


NO_PANELS = {"Targets", "SASL", "No worker is ready"}
"""What a runbook has in italics and no dashboard has: a page of Prometheus', and what the service says."""


def test_the_panels_that_runbooks_name_have_these_titles() -> None:
    italics = re.compile(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)")
    named = {" ".join(each.split()) for page in RUNBOOKS.glob("*.md") for each in italics.findall(page.read_text())}
    assert named - {*panels()} == NO_PANELS


def test_every_command_of_the_runbooks_is_whole_and_one_that_kunicorn_has() -> None:
    commands = [line for blocks in shown("sh").values() for block in blocks for line in block.splitlines()]
    ours = [shlex.split(line.partition("kunicorn -- ")[2], comments=True) for line in commands if " -- " in line]
    called = [words[1:] for words in ours if words[0] == "kunicorn"]
    assert len(called) > 40
    application = typer.main.get_command(app)
    for arguments in called:
        # Parsed as it would be when it runs: an option or a command that there is not ends the test.
        context = application.make_context("kunicorn", list(arguments))
        command: Any = application
        name: str | None = None
        rest = list(arguments)
        while isinstance(command, TyperGroup):
            name, command, rest = command.resolve_command(context, rest)
        command.make_context(name, rest, parent=context)
    others = [line for line in commands if "kunicorn -- " not in line and not line.startswith(("#", " ", "POD="))]
    assert [line for line in others if not line.startswith(("kubectl -n shop ", "helm -n shop "))] == []


def series_of(release: str, namespace: str, group: str) -> str:
    """A topic's series as Prometheus has it of a pod of that release, by the labels of the chart's PodMonitor."""
    return (
        f'kafka_consumer_max_lag_seconds{{namespace="{namespace}",job="{namespace}/{release}",pod="{release}-1",'
        f'release="{release}",group="{group}",topic="t"}}'
    )


def rules_in(
    tools: Tools, directory: Path, release: str, namespace: str, *sets: str, options: Sequence[str] = ()
) -> Path:
    """The rules that the chart installs for that release, as a file of promtool's."""
    values = {"config.group.id": f"{release}-group", "prometheusRule.enabled": "true", "podMonitor.enabled": "true"}
    given = [*(f"{name}={value}" for name, value in values.items()), *sets]
    options = [*options, *(word for each in given for word in ("--set", each))]
    return rules_of_values(tools, directory, EXAMPLE, release, namespace, options)


def rules_of_values(
    tools: Tools, directory: Path, values: Path, release: str, namespace: str, options: Sequence[str]
) -> Path:
    """The rules that the chart installs for a file of values, as a file of promtool's."""
    text: list[str | Path] = [
        "template",
        release,
        CHART,
        "--namespace",
        namespace,
        "-f",
        values,
        "-s",
        "templates/prometheusrule.yaml",
    ]
    done = tools.run("helm4", *text, "--set", f"fullnameOverride={release}", *options)
    assert done.returncode == 0, done.stderr
    spec = done.stdout.partition("\nspec:\n")[2]
    file = directory / f"{namespace}-{release}.yaml"
    file.write_text(textwrap.dedent(spec))
    return file


def test_alerts_limits_and_labels_of_one_release_are_not_those_of_another(tools: Tools, tmp_path: Path) -> None:
    limit = 'max by (namespace\\,group) (kafka_consumer_max_lag_seconds{release="RELEASE"}) > 900'
    patient = (f"prometheusRule.overrides.KunicornLagHigh.expr={limit}", "prometheusRule.alertLabels.team=blue")
    rules = [
        rules_in(tools, tmp_path, "strict", "shop", "prometheusRule.alertLabels.team=red"),
        rules_in(tools, tmp_path, "patient", "shop", *patient),
        # The same release and group once more, in another namespace.
        rules_in(tools, tmp_path, "strict", "staging", "prometheusRule.disabled={KunicornLagHigh}"),
    ]
    members = (("strict", "shop"), ("patient", "shop"), ("strict", "staging"))
    late = {series_of(release, namespace, f"{release}-group"): "400x90" for release, namespace in members}
    fired = 'count by (release, team) (ALERTS{alertname="KunicornLagHigh",alertstate="firing"})'
    expected = [{"labels": '{release="strict", team="red"}', "value": 1}]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in late.items()],
        "promql_expr_test": [{"expr": fired, "eval_time": "15m", "exp_samples": expected}],
    }
    assert found_by_promtool(tools, tmp_path, [test], rules) == ""


def test_prometheus_can_read_the_rules_of_every_values_file(tools: Tools, tmp_path: Path) -> None:
    on = ("--set", "prometheusRule.enabled=true,podMonitor.enabled=true,serviceMonitor.enabled=false")
    names = [file.name.removesuffix("-values.yaml") for file in VALUES]
    rules = [rules_of_values(tools, tmp_path, *each, "shop", on) for each in zip(VALUES, names, strict=True)]
    done = tools.run("promtool", "check", "rules", *rules)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_a_group_the_rules_ask_for_the_series_that_a_service_with_assign_shows(
    tools: Tools, tmp_path: Path
) -> None:
    (assign,) = (file for file in VALUES if file.name == "assign-values.yaml")
    for given, group in (("", CLIENTS_GROUP), (",config.group.id=own", "own")):
        on = ("--set", f"prometheusRule.enabled=true{given}")
        rules = rules_of_values(tools, tmp_path, assign, "orders", "shop", on).read_text()
        assert set(re.findall(r'group=\\"([^"\\]+)', rules)) == {group}


def test_only_a_release_whose_targets_can_be_told_has_an_alert_on_them(tools: Tools, tmp_path: Path) -> None:
    own = 'up{namespace=\\"shop\\", release=\\"orders\\", job!=\\"shop/orders-pipelines\\"}'
    assert own in rules_in(tools, tmp_path, "orders", "shop").read_text()
    unmonitored = rules_in(tools, tmp_path, "orders", "shop", "podMonitor.enabled=false").read_text()
    assert "KunicornPodSilent" not in unmonitored
    assert "up{" not in unmonitored


@pytest.mark.parametrize("release", ["etl", "etl-pipelines"])
def test_a_pod_is_missed_whatever_the_releases_name_and_pods_of_jobs_are_not(
    tools: Tools, tmp_path: Path, release: str
) -> None:
    rules = rules_in(tools, tmp_path, release, "shop")
    jobs = {f"shop/{release}": "orders-1", f"shop/{release}-pipelines": "replay-1"}
    up = 'up{{namespace="shop",release="{}",job="{}",pod="{}"}}'
    silent = {up.format(release, job, pod): "0x90" for job, pod in jobs.items()}
    fired = 'count by (pod) (ALERTS{alertname="KunicornPodSilent",alertstate="firing"})'
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in silent.items()],
        "promql_expr_test": [
            {"expr": fired, "eval_time": "5m", "exp_samples": [{"labels": '{pod="orders-1"}', "value": 1}]}
        ],
    }
    assert found_by_promtool(tools, tmp_path, [test], [rules]) == ""


def test_the_objective_is_the_values(tools: Tools, tmp_path: Path) -> None:
    objective = json.dumps({"lagSeconds": 60, "objectivePercent": 99.5})
    options = ("--set-json", f"prometheusRule.slo={objective}")
    text = rules_in(tools, tmp_path, "strict", "shop", options=options).read_text()
    assert "> bool 60" in text
    assert "> 14.4 * 0.005" in text
    assert "> bool 300" not in text
    assert "* 0.01" not in text


@pytest.mark.parametrize(("interval", "seconds"), [(60_000, 120), (60_001, 121), (300_000, 600)])
def test_a_commit_is_late_when_the_next_one_would_be_due(
    tools: Tools, tmp_path: Path, interval: int, seconds: int
) -> None:
    text = rules_in(tools, tmp_path, "rare", "shop", f"config.group.commit_interval_ms={interval}").read_text()
    (limit,) = re.findall(r"kunicorn_uptime_seconds\{[^}]*\}\) > (\d+) and", text)
    assert int(limit) == seconds


def test_an_expression_of_the_values_keeps_its_own_factor_and_the_others_have_the_budget(
    tools: Tools, tmp_path: Path
) -> None:
    own = {"expr": 'kunicorn_event_loop_lag_seconds{release="RELEASE"} * 0.01 > 0.005'}
    given = {"overrides": {"KunicornSupervisorSlow": own}, "slo": {"objectivePercent": 99.5}}
    options = [
        word for name, each in given.items() for word in ("--set-json", f"prometheusRule.{name}={json.dumps(each)}")
    ]
    text = rules_in(tools, tmp_path, "own", "shop", options=options).read_text()
    assert r"release=\"own\"} * 0.01 > 0.005" in text
    assert text.count("* 0.01") == 1
    assert "> 14.4 * 0.005" in text
