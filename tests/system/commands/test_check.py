"""`kunicorn check` beside a real broker and real handlers, good and bad."""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from typer.testing import CliRunner

from kunicorn.clients.session import open_cluster
from kunicorn.commands.check.cluster import Finding
from kunicorn.commands.check.session import check
from kunicorn.commands.cli import app
from kunicorn.errors import ExitCode
from kunicorn.kafka.cluster import Cluster
from kunicorn.observe import requests
from kunicorn.settings import KafkaSettings, Settings
from tests.kafka import KafkaCluster
from tests.system.producing import committed_offsets
from tests.waiting import runs, wait_until

NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        cluster.create_topic("orders", 3)
        cluster.create_topic("refunds-eu", 1)
        yield cluster


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with a good handler in it."""
    (tmp_path / "shop.py").write_text("def handle(record): ...\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(**changes: dict[str, Any]) -> tuple[ExitCode, dict[str, str]]:
    """The exit code, and the lines by what they are about."""
    values: dict[str, dict[str, Any]] = {
        "kafka": {"bootstrap_servers": [NOWHERE]},
        "group": {"id": "shop", "topics": ["orders"]},
        "handler": {"entrypoint": "shop:handle"},
        # Whatever else runs on this machine has the usual one.
        "http": {"port": 0},
    }
    for section, more in changes.items():
        values.setdefault(section, {}).update(more)
    lines: list[str] = []
    code = check(Settings.model_validate(values), lambda finding: lines.append(str(finding)))
    return code, {line.split()[1]: line for line in lines}


def test_all_is_well(kafka: KafkaCluster, handlers: Path) -> None:
    code, lines = checked(kafka={"bootstrap_servers": kafka.bootstrap.split(",")}, group={"id": "looked-at"})
    assert code is ExitCode.CLEAN
    # Who runs the tests as root is told that they do.
    assert (lines.pop("user", None) is not None) == (os.geteuid() == 0)
    lines.pop("memory", None)  # So is whoever runs them where as many workers as CPUs do not fit.
    assert [line.split()[:2] for line in lines.values()] == [
        ["ok", what]
        for what in ("handler", "client", "allocator", "setup", "brokers", "topics", "rights", "group", "members")
    ]
    assert "orders (3 partitions)" in lines["topics"]
    assert "coordinator on node" in lines["group"]
    groups = kafka.admin().list_consumer_groups().result(60).valid
    assert "looked-at" not in {group.group_id for group in groups}, "it never joins"


def test_what_is_found_can_be_had_for_a_program(kafka: KafkaCluster, handlers: Path) -> None:
    (handlers / "config.toml").write_text(
        f'[kafka]\nbootstrap_servers = ["{kafka.bootstrap}"]\n[group]\nid = "shop"\ntopics = ["orders"]\n'
        '[handler]\nentrypoint = "shop:handle"\n[http]\nport = 0\n'
    )
    result = CliRunner().invoke(app, ["check", "--json"])
    assert result.exit_code == 0, result.output
    found = {each["what"]: each for each in json.loads(result.stdout)}
    assert found["settings"]["result"] == "ok"
    assert found["members"]["text"].startswith("none now; this member would get 3 of 3 partitions")


def test_a_topic_that_does_not_exist_is_told_and_not_created(kafka: KafkaCluster, handlers: Path) -> None:
    servers = {"bootstrap_servers": kafka.bootstrap.split(",")}
    for _ in range(2):
        code, lines = checked(kafka=servers, group={"topics": ["ordres"]})
        assert code is ExitCode.CONFIGURATION
        assert lines["topics"].startswith("FAILED  topics    ordres: UNKNOWN_TOPIC_OR_PARTITION (3); create the topic")


def test_partitions_that_are_assigned_by_name_are_looked_for_and_no_group_is(
    kafka: KafkaCluster, handlers: Path
) -> None:
    servers = {"bootstrap_servers": kafka.bootstrap.split(",")}
    code, lines = checked(kafka=servers, group={"topics": []}, assign={"partitions": ["orders:0-2"]})
    assert code is ExitCode.CLEAN
    assert "group" not in lines
    code, lines = checked(kafka=servers, group={"topics": []}, assign={"partitions": ["orders:1-3"]})
    assert code is ExitCode.CONFIGURATION
    assert "assign.partitions: orders:3 do not exist" in lines["assign"]


def test_a_pattern_tells_the_topics_it_matches(kafka: KafkaCluster, handlers: Path) -> None:
    code, lines = checked(kafka={"bootstrap_servers": kafka.bootstrap.split(",")}, group={"topics": ["^refunds-.*"]})
    assert code is ExitCode.CLEAN
    assert lines["topics"].endswith("^refunds-.* matches refunds-eu (1 partition)")


def test_a_pattern_without_a_match_is_no_failure(kafka: KafkaCluster, handlers: Path) -> None:
    code, lines = checked(kafka={"bootstrap_servers": kafka.bootstrap.split(",")}, group={"topics": ["^zzz"]})
    assert code is ExitCode.CLEAN
    assert "matches no topic yet" in lines["topics"]


def test_brokers_that_do_not_answer_are_named(handlers: Path) -> None:
    code, lines = checked()
    assert code is ExitCode.CONFIGURATION
    assert lines["brokers"].startswith("FAILED  brokers   no broker answered: cannot connect to 127.0.0.1:1")
    assert lines["brokers"].endswith("correct kafka.bootstrap_servers, or start them")
    assert "topics" not in lines


def test_a_group_of_the_other_protocol_is_not_joined_unasked(kafka: KafkaCluster, handlers: Path) -> None:
    classic = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "classic"})
    try:
        classic.subscribe(["orders"])
        wait_until(lambda: classic.poll(0.1) is None and classic.assignment(), "its partitions")
        group = {"id": "classic", "group_protocol": "consumer"}
        code, lines = checked(kafka={"bootstrap_servers": kafka.bootstrap.split(",")}, group=group)
    finally:
        classic.close()
    assert code is ExitCode.CONFIGURATION
    assert "group 'classic' is a classic group (Stable, 1 members)" in lines["members"]


class NoBroker(socketserver.BaseRequestHandler):
    """Accepts every connection, and says what no broker says."""

    says = b""

    def handle(self) -> None:
        self.request.sendall(self.says)
        while self.request.recv(1000):
            pass


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (b"", "did not answer as a broker does within"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP server answers there"),
    ],
    ids=["nothing", "http"],
)
def test_who_answers_in_a_brokers_place_is_not_said_to_be_out_of_reach(handlers: Path, says: bytes, told: str) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), type("", (NoBroker,), {"says": says})) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        code, lines = checked(kafka={"bootstrap_servers": [f"127.0.0.1:{server.server_address[1]}"]})
        server.shutdown()
    assert code is ExitCode.CONFIGURATION
    assert told in lines["brokers"]
    assert "accept" not in lines["brokers"], "it did"


def test_a_property_that_librdkafka_refuses_is_named(handlers: Path) -> None:
    code, lines = checked(kafka={"librdkafka": {"fetch.wait.maxx.ms": 1}})
    assert code is ExitCode.CONFIGURATION
    assert lines["client"].startswith('FAILED  client    No such configuration property: "fetch.wait.maxx.ms"')


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "has no 'handle'"),
        ("def handle(): ...", "is called with exactly one argument"),
        ("import nothing_of_the_kind", "nothing_of_the_kind"),
        ("raise ValueError('no database')", "ValueError: no database"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("def handle(:", "SyntaxError"),
        ("import os; os._exit(9)", "ended the process: exit 9"),
        ("import os; os.kill(os.getpid(), 11)", "ended the process: SIGSEGV"),
    ],
)
def test_a_handler_that_cannot_be_loaded_is_told_with_exit_code_3(handlers: Path, source: str, words: str) -> None:
    (handlers / "shop.py").write_text(source)
    code, lines = checked()
    assert code is ExitCode.HANDLER
    assert lines["handler"].startswith("FAILED  handler")
    assert words in lines["handler"]


def test_a_handler_whose_import_does_not_end_is_killed_with_its_children(handlers: Path) -> None:
    pids = handlers / "pids"
    (handlers / "shop.py").write_text(
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)\n"
    )
    code, lines = checked(workers={"start_timeout_ms": 3000})
    assert code is ExitCode.HANDLER
    assert "took more than 3 s (workers.start_timeout_ms)" in lines["handler"]
    # A slow machine has not come to the module by then.
    for pid in map(int, pids.read_text().split() if pids.exists() else []):
        wait_until(lambda pid=pid: not runs(pid), "the module's processes to be gone")  # type: ignore[misc]


@pytest.mark.parametrize(("ending", "result"), [("", "ok"), ("raise ValueError('too bad')", "FAILED")])
def test_threads_and_children_of_a_handlers_module_neither_hold_up_the_check_nor_outlive_it(
    handlers: Path, ending: str, result: str
) -> None:
    (handlers / "shop.py").write_text(
        "import os, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "child = os.fork()\n"
        "if child == 0: time.sleep(600)\n"
        "open('pid', 'w').write(str(child))\n"
        f"def handle(record): ...\n{ending}\n"
    )
    _, lines = checked()
    assert lines["handler"].startswith(result)
    assert ("too bad" in lines["handler"]) == (result == "FAILED")
    child = int((handlers / "pid").read_text())
    wait_until(lambda: not runs(child), "the module's child to be gone")


def test_what_a_handlers_module_prints_is_not_mixed_into_the_answer(
    handlers: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (handlers / "shop.py").write_text("print('noise')\ndef handle(record): ...\n")
    checked()
    assert "noise" not in capfd.readouterr().out


# -- the handler tried on records --------------------------------------------------------------------------------------


def tried(
    kafka: KafkaCluster,
    topic: str,
    records: int,
    partitions: Sequence[str] = (),
    isolation_level: str = "read_uncommitted",
    **handler: Any,
) -> tuple[ExitCode, str]:
    """The exit code and the last line of `kunicorn check --try`; with `partitions`, of a service that assigns them."""
    lines: list[str] = []
    source = {"assign": {"partitions": list(partitions)}} if partitions else {"group": {"id": topic, "topics": [topic]}}
    settings = {
        "kafka": {"bootstrap_servers": kafka.bootstrap.split(","), "isolation_level": isolation_level},
        **source,
        "handler": {"entrypoint": "shop:handle", **handler},
        "http": {"port": 0},
    }
    code = check(Settings.model_validate(settings), lambda finding: lines.append(str(finding)), records=records)
    return code, lines[-1]


@pytest.fixture(scope="module")
def numbers(kafka: KafkaCluster) -> str:
    """A topic of two partitions with the numbers from 0 to 19 in each."""
    kafka.create_topic("numbers", 2)
    for partition in (0, 1):
        sender = Producer({"bootstrap.servers": kafka.bootstrap})
        for number in range(20):
            sender.produce("numbers", str(number), "key", partition=partition, timestamp=1_700_000_000_000 + number)
        assert sender.flush(60) == 0
    return "numbers"


def test_what_the_handler_prints_is_shown_beside_the_answer(
    kafka: KafkaCluster, handlers: Path, numbers: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (handlers / "shop.py").write_text(
        "import sys\n"
        "def handle(record):\n"
        "    print('order', record.offset)\n"
        "    print('no newline', end='', file=sys.stderr)\n"
        "    sys.stdout.write('\\x1b[31m' * 20_000)\n"
    )
    code, line = tried(kafka, numbers, 2)
    assert code is ExitCode.CLEAN, line
    out, err = capfd.readouterr()
    assert "handler | order 19" in err
    assert "\x1b" not in err
    assert "order" not in out


@pytest.mark.parametrize("mode", ["record", "batch", "arrow"])
def test_the_handler_gets_the_latest_records_with_its_options_and_commits_nothing(
    kafka: KafkaCluster, handlers: Path, numbers: str, mode: str
) -> None:
    (handlers / "shop.py").write_text(
        "seen = open('seen', 'a', buffering=1)\n"
        "def setup(options): seen.write(options['greeting'] + '\\n')\n"
        "def handle(got):\n"
        "    if hasattr(got, 'to_pylist'):\n"
        "        records = [(row['partition'], row['value']) for row in got.to_pylist()]\n"
        "    else:\n"
        "        records = [(one.partition, one.value) for one in ([got] if hasattr(got, 'offset') else got)]\n"
        "    for partition, value in records:\n"
        "        seen.write(f'{partition}:{value.decode()}\\n')\n"
        "handle.setup = setup\n"
    )
    code, line = tried(kafka, numbers, 4, mode=mode, options={"greeting": "hello"})
    assert code is ExitCode.CLEAN, line
    assert line.startswith("ok      trial     4 records handled")
    assert (handlers / "seen").read_text().split() == ["hello", "0:18", "0:19", "1:18", "1:19"]
    assert set(committed_offsets(kafka.bootstrap, numbers, numbers, 2).values()) == {-1001}


def test_a_service_that_assigns_partitions_by_name_is_tried_with_records_of_no_others(
    kafka: KafkaCluster, handlers: Path, numbers: str
) -> None:
    (handlers / "shop.py").write_text(
        "seen = open('seen', 'a', buffering=1)\n"
        "def handle(record): seen.write(f'{record.partition}:{record.value.decode()}\\n')\n"
    )
    code, line = tried(kafka, numbers, 2, partitions=["numbers:1"])
    assert code is ExitCode.CLEAN, line
    assert (handlers / "seen").read_text().split() == ["1:18", "1:19"]


def test_records_that_fail_are_counted_and_the_first_is_told_with_its_place(
    kafka: KafkaCluster, handlers: Path, numbers: str
) -> None:
    (handlers / "shop.py").write_text(
        "from kunicorn import Skip\n"
        "async def handle(record):\n"
        "    if record.value == b'18': raise ValueError('too bad')\n"
        "    return Skip('odd')\n"
    )
    code, line = tried(kafka, numbers, 4)
    assert code is ExitCode.HANDLER
    assert line.startswith("FAILED  trial     2 of 4 records failed"), line
    assert "2 said Skip: numbers-0@18: ValueError: too bad" in line
    assert 'shop.py", line 3, in handle' in line


def test_what_a_batch_says_is_not_said_of_records_behind_one_that_cannot_be_decoded(
    kafka: KafkaCluster, handlers: Path, numbers: str
) -> None:
    (handlers / "shop.py").write_text(
        "from kunicorn import Skip\n"
        "def decode(value):\n"
        "    if value == b'18': raise ValueError('too bad')\n"
        "    return value\n"
        "def handle(batch): return Skip('odd') if batch[0].offset < 18 else None\n"
    )
    code, line = tried(kafka, numbers, 8, mode="batch", value="shop:decode")
    assert code is ExitCode.HANDLER
    assert line.startswith("FAILED  trial     2 of 8 records failed"), line
    assert "4 said Skip: numbers-0@18: Undecodable: " in line


def test_a_handler_that_ends_the_trial_is_told(kafka: KafkaCluster, handlers: Path, numbers: str) -> None:
    (handlers / "shop.py").write_text("import os\ndef handle(record): os.kill(os.getpid(), 11)\n")
    code, line = tried(kafka, numbers, 1)
    assert code is ExitCode.HANDLER
    assert line.endswith("trying the handler on 1 records ended early: SIGSEGV")


def test_records_that_were_sent_in_transactions_are_tried_beside_one_that_is_open(
    kafka: KafkaCluster, handlers: Path
) -> None:
    kafka.create_topic("paid", 1)
    sender = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "paid"})
    sender.init_transactions(30)
    for number in range(3):
        sender.begin_transaction()
        sender.produce("paid", str(number))
        sender.commit_transaction(30)
    sender.begin_transaction()
    sender.produce("paid", "open")
    assert sender.flush(60) == 0
    try:
        code, line = tried(kafka, "paid", 2, isolation_level="read_committed")
    finally:
        sender.abort_transaction(30)
    assert code is ExitCode.CLEAN, line
    assert line.startswith("ok      trial     2 records handled"), line


def test_topics_without_records_are_no_failure(kafka: KafkaCluster, handlers: Path) -> None:
    assert tried(kafka, "orders", 5) == (
        ExitCode.CLEAN,
        "warning trial     the topics hold no records to try the handler on",
    )


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("def handle(record): ...\n", {"rate": 1}, "has no setup(options)"),
        ("class Shop:\n def setup(self, options): raise RuntimeError('no database')\n def handle(self, record): ...\n",
         {}, "setup raised RuntimeError: no database"),
    ],
    ids=["options that nobody reads", "a setup that raises"],
)  # fmt: skip
def test_a_start_that_setup_would_end_is_told(
    kafka: KafkaCluster, handlers: Path, source: str, options: dict[str, int], words: str
) -> None:
    (handlers / "shop.py").write_text(source)
    entrypoint = "shop:Shop" if "class" in source else "shop:handle"
    brokers = {"bootstrap_servers": kafka.bootstrap.split(",")}
    code, lines = checked(kafka=brokers, handler={"entrypoint": entrypoint, "options": options})
    assert code is ExitCode.HANDLER
    assert any(words in line for line in lines.values()), lines


def test_a_port_that_another_process_has_is_told(kafka: KafkaCluster, handlers: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        http = {"host": "127.0.0.1", "port": port}
        code, lines = checked(kafka={"bootstrap_servers": kafka.bootstrap.split(",")}, http=http)
    assert code is ExitCode.CONFIGURATION
    assert f"http.port = {port} on 127.0.0.1: another process listens there" in lines["port"]


def test_the_port_of_the_service_that_runs_here_is_no_failure(kafka: KafkaCluster, handlers: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with requests.listen(port) as local:
            local.listen()
            http = {"host": "127.0.0.1", "port": port}
            code, lines = checked(kafka={"bootstrap_servers": kafka.bootstrap.split(",")}, http=http)
            requests.forget(local.getsockname())
    assert code is ExitCode.CLEAN
    assert lines["port"].startswith("warning")


def test_at_a_pods_start_an_outage_is_waited_for(
    kafka: KafkaCluster, handlers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, said = [NOWHERE], list[str]()

    def opened(settings: KafkaSettings) -> Cluster:
        return open_cluster(settings.model_copy(update={"bootstrap_servers": tuple(servers)}))

    def say(finding: Finding) -> None:
        said.append(str(finding))
        if "waiting for this to pass" in finding.text:
            servers[:] = kafka.bootstrap.split(",")

    monkeypatch.setattr("kunicorn.commands.check.cluster.open_cluster", opened)
    assert check(wanted(["orders"]), say, waits=True) is ExitCode.CLEAN
    (waited,) = (line for line in said if "waiting for this to pass" in line)
    assert NOWHERE in waited


def test_at_a_pods_start_what_will_not_pass_ends_at_once(kafka: KafkaCluster, handlers: Path) -> None:
    servers = kafka.bootstrap.split(",")
    assert check(wanted(["no-such-topic"], servers), lambda _: None, waits=True) is ExitCode.CONFIGURATION


def wanted(topics: list[str], servers: Sequence[str] = (NOWHERE,)) -> Settings:
    return Settings.model_validate(
        {
            "kafka": {"bootstrap_servers": list(servers)},
            "group": {"id": "shop", "topics": topics},
            "handler": {"entrypoint": "shop:handle"},
        }
    )


def test_transactions_that_brokers_do_not_begin_are_told_with_what_to_do(kafka: KafkaCluster, handlers: Path) -> None:
    servers = {"bootstrap_servers": kafka.bootstrap.split(",")}
    isolated = {**servers, "isolation_level": "read_committed"}
    producing: dict[str, Any] = {"delivery": "transactions", "topic": "refunds-eu", "transactional_id_prefix": "shop-1"}
    worker = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "shop-1-0-0-a"})
    worker.init_transactions(60)
    code, lines = checked(kafka=isolated, producing=producing)
    assert code is ExitCode.CLEAN
    assert "brokers begin transactions for 'shop-1-check'" in lines["outputs"]
    worker.begin_transaction()
    worker.produce("refunds-eu", "no worker was fenced")
    worker.commit_transaction(60)
    code, lines = checked(kafka=isolated, producing={**producing, "transaction_timeout_ms": 3_600_000})
    assert code is ExitCode.CONFIGURATION
    assert "lower producing.transaction_timeout_ms" in lines["outputs"]
