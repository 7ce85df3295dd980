"""The file: what is taken, and in which words the rest is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import pytest
from pydantic import BaseModel, ValidationError, model_validator

from kunicorn.errors import ConfigError, ExitCode
from kunicorn.librdkafka.properties import OWNED_PROPERTIES
from kunicorn.settings import at_a_desk, load, shown
from kunicorn.settings.problems import problems_of
from tests.fakes.complete_settings import settings_of
from tests.unit.settings.files import LEAST, loaded, problem, problems


def test_the_required_settings_are_enough(tmp_path: Path) -> None:
    settings = loaded(tmp_path)
    assert settings.kafka.bootstrap_servers == ("127.0.0.1:9092",)
    assert settings.group.topics == ("orders",)
    assert settings.group.auto_offset_reset == "earliest"
    assert settings.group.partition_assignment_strategy == ("cooperative-sticky",)
    assert settings.workers.count >= 1


def test_settings_are_frozen(tmp_path: Path) -> None:
    settings = loaded(tmp_path)
    with pytest.raises(ValidationError):
        settings.http.port = 1  # type: ignore[misc]


def test_the_same_file_gives_equal_settings(tmp_path: Path) -> None:
    assert loaded(tmp_path) == loaded(tmp_path)


def test_the_machines_environment_does_not_leak_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA", '{"client_id": "other"}')
    monkeypatch.setenv("KUNICORN_KAFKA__CLIENT_ID", "other")
    assert loaded(tmp_path).kafka.client_id == "kunicorn"


def test_settings_made_in_code_do_not_depend_on_the_machines_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http", '{"port": 1}')
    made = settings_of()
    assert made.http.port == 9400


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*absent\.toml.*--config") as refused:
        load(tmp_path / "absent.toml", {})
    assert refused.value.exit_code is ExitCode.CONFIGURATION


def test_a_directory_in_place_of_the_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path, {})


def test_a_list_that_is_not_closed_is_looked_for_above(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[group]\ntopics = ["orders"\nid = "shop"\n')
    with pytest.raises(ConfigError, match=r"line 3, column 1: not valid TOML: Unclosed array .* some lines above"):
        load(tmp_path / "config.toml", {})


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[kafka]\nclient_id = kunicorn\n", "line 2, column 13"),
        ('[kafka]\nclient_id = "kunicorn', "end of the file"),
        ("[kafka]\na = 1\na = 2\n", "line 3, column 6"),
    ],
)
def test_malformed_toml_names_the_place(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(ConfigError, match=rf"config\.toml, {place}: not valid TOML"):
        loaded(tmp_path, text)


@pytest.mark.parametrize("text", ["[handler.options]\nx = " + "1" * 5000, "x = " + "[" * 5000], ids=["1", "["])
def test_a_file_that_is_too_much_for_the_parser_is_refused_as_any_other(tmp_path: Path, text: str) -> None:
    """On a reload anything else would end the service, whose file was damaged a moment ago."""
    with pytest.raises(ConfigError, match=r"config\.toml cannot be read as TOML"):
        loaded(tmp_path, text)


@pytest.mark.parametrize("begins", ["handler.options", "kafka.librdkafka", "sections"])
@pytest.mark.parametrize("deep", [101, 1000, 5000])
def test_tables_that_are_nested_too_deeply_are_refused_by_the_section_that_has_them(
    tmp_path: Path, begins: str, deep: int
) -> None:
    section = begins.partition(".")[0]
    with pytest.raises(ConfigError, match=rf"config\.toml cannot be read as TOML: {section} has more than 100 tables"):
        loaded(tmp_path, f"[{begins}{'.a' * deep}]\nx = 1\n")


def test_tables_of_a_depth_that_people_write_are_taken(tmp_path: Path) -> None:
    options = loaded(tmp_path, LEAST + f"[handler.options{'.a' * 90}]\nx = 1\n").handler.options
    assert "x" in str(options)


@pytest.mark.parametrize(
    "text", ['{"a": ' * 5000 + "1" + "}" * 5000, '{"a": ' * 200 + "1" + "}" * 200, '{"a": ' + "1" * 5000 + "}"]
)
def test_a_variable_that_is_too_much_for_the_parser_is_refused_as_any_other(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"handler\.options = .*from KUNICORN_HANDLER__OPTIONS"):
        loaded(tmp_path, LEAST, {"KUNICORN_HANDLER__OPTIONS": text})


@pytest.mark.parametrize("pattern", ["^a{99999999999}", "^" + "(" * 5000 + ")" * 5000], ids=["{", "("])
def test_a_pattern_that_is_too_much_for_its_compiler_is_refused_as_any_other(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"group\.topics.*not a regular expression"):
        loaded(tmp_path, LEAST.replace('["orders"]', f'["{pattern}"]'))


def test_a_file_whose_name_is_longer_than_names_are_is_refused_by_its_setting(tmp_path: Path) -> None:
    name = "x" * 5000
    with pytest.raises(ConfigError, match=r"kafka\.ssl_ca_location.*cannot be read: File name too long"):
        loaded(tmp_path, LEAST.replace("[kafka]", f'[kafka]\nssl_ca_location = "{name}"'))


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"[kafka]\nclient_id = '\xff'\n")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 21"):
        load(path, {})


def test_an_empty_file_lists_every_required_setting_with_an_example(tmp_path: Path) -> None:
    assert problems(tmp_path, "") == [
        'kafka.bootstrap_servers: is missing; set it in [kafka], such as bootstrap_servers = ["127.0.0.1:9092"]',
        'group.id: is missing; set it in [group], such as id = "orders"',
        'group.topics: is missing; set it in [group], such as topics = ["orders", "^refunds-.*"]',
        'handler.entrypoint: is missing; set it in [handler], such as entrypoint = "shop.handlers:handle_order"',
    ]


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    text = LEAST + "mode = 'all'\n[http]\nport = 'x'\n[log]\nlevel = 'loud'\n"
    assert [line.split(" ")[0] for line in problems(tmp_path, text)] == ["handler.mode", "http.port", "log.level"]


@pytest.mark.parametrize(
    ("section", "line", "text"),
    [
        ("group", 'topic = "x"', "group.topic: unknown setting; did you mean topics?"),
        ("kafka", "session_timeout_ms = 1", "kafka.session_timeout_ms: unknown setting; did you mean group.sess"),
        ("group", '"session.timeout.ms" = 1', "group.session.timeout.ms: unknown setting; did you mean session"),
        ("http", "zzz = 1", "http.zzz: unknown setting; the settings in [http] are enabled, host, port"),
        ("grupp", "x = 1", 'grupp = {"x": "(not shown)"}: unknown section; did you mean [group]?'),
        ("zzz", "x = 1", 'zzz = {"x": "(not shown)"}: unknown section; the sections are kafka, group, assign, handler'),
    ],
)
def test_an_unknown_name_is_refused_with_the_one_that_was_meant(
    tmp_path: Path, section: str, line: str, text: str
) -> None:
    assert problem(tmp_path, section, line).startswith(text)


@pytest.mark.parametrize(
    ("section", "line", "text"),
    [
        ("http", 'port = "9400"', 'http.port = "9400": not a whole number; write it in digits, without quotes'),
        ("http", "port = true", "http.port = true: not a whole number; write it in digits, without quotes"),
        ("http", "port = 65536", "http.port = 65536: too large; the most is 65535"),
        ("http", "enabled = 1", "http.enabled = 1: not a truth value; write true or false, without quotes"),
        ("workers", "count = 0", "workers.count = 0: too small; the least is 1"),
        ("workers", 'allocator = "jemalloc"', 'workers.allocator = "jemalloc": not "auto", "system" or the absolute'),
        ("workers", 'allocator = "/a b.so"', 'workers.allocator = "/a b.so": not "auto", "system" or the absolute'),
        ("workers", 'allocator = "/absent.so"', 'workers.allocator = "/absent.so": there is no such file; install'),
        ("kafka", "client_id = 5", 'kafka.client_id = 5: not a text; put it in quotes, "like this"'),
        ("kafka", 'client_id = ""', 'kafka.client_id = "": empty; leave it out, or give it a value'),
        ("kafka", "bootstrap_servers = []", "kafka.bootstrap_servers = []: empty; name at least one"),
        ("kafka", 'bootstrap_servers = "a:1"', 'kafka.bootstrap_servers = "a:1": not a list; write ["one", "two"]'),
        ("kafka", 'bootstrap_servers = ["a"]', 'kafka.bootstrap_servers[0] = "a": not a broker\'s address; write'),
        ("kafka", "librdkafka = 5", "kafka.librdkafka = 5: not a table; write a table of its own"),
        ("group", "id = ' '", 'group.id = " ": empty; give the group a name'),
        ("group", "topics = ['a b']", 'group.topics[0] = "a b": not a legal name'),
        ("group", "topics = ['^(']", 'group.topics[0] = "^(": not a regular expression (missing ), unterminated'),
        ("group", "group_instance_id = '..'", 'group.group_instance_id = "..": not a legal name'),
        ("group", "auto_offset_reset = 'newest'", 'group.auto_offset_reset = "newest": not a value it can have'),
        ("group", "partition_assignment_strategy = ['range', 'range']", "group.partition_assignment_strategy = "),
        ("group", "heartbeat_interval_ms = 3000000000", "group.heartbeat_interval_ms = 3000000000: too large"),
        ("handler", "entrypoint = 'shop'", 'handler.entrypoint = "shop": not of the form package.module:attribute'),
        ("handler", "entrypoint = 'shop:handlers.'", "handler.entrypoint"),
    ],
)
def test_a_wrong_value_is_refused_with_what_would_be_right(tmp_path: Path, section: str, line: str, text: str) -> None:
    assert problem(tmp_path, section, line).startswith(text)


def test_a_section_that_is_no_table_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path, "http = 5\n" + LEAST) == ["http = 5: not a section; write it as a table, [section]"]


def test_a_security_protocol_that_kafka_does_not_know_is_just_wrong(tmp_path: Path) -> None:
    assert "not a value it can have" in problem(tmp_path, "kafka", "security_protocol = 'TLS'")


@pytest.mark.parametrize(
    ("section", "lines", "key", "words"),
    [
        ("group", "session_timeout_ms = 6000", "group.session_timeout_ms = 6000", "allow_short_session_timeout = true"),
        ("group", "heartbeat_interval_ms = 15001", "group.heartbeat_interval_ms = 15001", "session_timeout_ms = 45000"),
        ("group", "drain_timeout_ms = 295000", "group.max_poll_interval_ms = 300000", "drain_timeout_ms = 295000"),
        ("kafka", "retry_backoff_ms = 1001", "kafka.retry_backoff_max_ms = 1000", "retry_backoff_ms = 1001"),
        ("handler", "retry_backoff_ms = 10001", "handler.retry_backoff_max_ms = 10000", "retry_backoff_ms = 10001"),
    ],
)
def test_settings_that_contradict_one_another_are_refused(
    tmp_path: Path, section: str, lines: str, key: str, words: str
) -> None:
    line = problem(tmp_path, section, lines)
    assert line.startswith(key)
    assert words in line


def test_an_assignor_of_the_brokers_needs_the_protocol_that_has_them(tmp_path: Path) -> None:
    own = 'group_remote_assignor = "range"'
    assert 'set group_protocol = "consumer", or remove it' in problem(tmp_path, "group", own)
    text = LEAST.replace("[group]", f'[group]\ngroup_protocol = "consumer"\n{own}')
    assert loaded(tmp_path, text).group.group_remote_assignor == "range"


@pytest.mark.parametrize("pattern", ["^.*", "^_", "^__transaction_state$", "^(orders|__share)"])
def test_a_pattern_that_brokers_match_may_not_match_topics_that_kafka_keeps_for_itself(
    tmp_path: Path, pattern: str
) -> None:
    def text(protocol: str, topic: str) -> str:
        topics = f'topics = ["orders", "{topic}"]'
        return LEAST.replace('topics = ["orders"]', f'{topics}\ngroup_protocol = "{protocol}"')

    with pytest.raises(ConfigError, match=r'group.topics .*"classic"'):
        loaded(tmp_path, text("consumer", pattern))
    assert loaded(tmp_path, text("classic", pattern)).group.topics == ("orders", pattern)
    # What somebody names is had, whoever keeps it.
    for harmless in ("^[^_].*", "^orders-", "__consumer_offsets"):
        assert loaded(tmp_path, text("consumer", harmless)).group.topics == ("orders", harmless)


def test_an_error_of_the_settings_as_a_whole_is_told_without_a_place() -> None:
    class Whole(BaseModel):
        @model_validator(mode="after")
        def _agrees(self) -> Self:
            raise ValueError("they do not go together")

    with pytest.raises(ValidationError) as refused:
        Whole()
    (only,) = problems_of(refused.value, {}, {})
    assert str(only) == "the settings: they do not go together"


def test_a_short_session_is_allowed_to_whoever_asks_for_it(tmp_path: Path) -> None:
    text = LEAST.replace("[group]", "[group]\nsession_timeout_ms = 6000\nallow_short_session_timeout = true")
    assert loaded(tmp_path, text).group.session_timeout_ms == 6000


def test_other_librdkafka_properties_pass_through(tmp_path: Path) -> None:
    text = LEAST + '[kafka.librdkafka]\n"fetch.wait.max.ms" = 50\n"socket.keepalive.enable" = true\n'
    assert loaded(tmp_path, text).kafka.librdkafka == {"fetch.wait.max.ms": 50, "socket.keepalive.enable": True}


@pytest.mark.parametrize("name", sorted(OWNED_PROPERTIES))
def test_a_librdkafka_property_of_ours_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    line = problem(tmp_path, "kafka.librdkafka", f'"{name}" = "x"')
    assert f"'{name}' cannot be set here: {OWNED_PROPERTIES[name]}" in line


def test_a_dotted_name_without_quotes_is_explained(tmp_path: Path) -> None:
    line = problem(tmp_path, "kafka.librdkafka", "fetch.wait.max.ms = 50")
    assert 'put the dotted name in quotes: "fetch.wait.max.ms"' in line


def test_secrets_appear_neither_in_a_refusal_nor_in_what_is_shown(tmp_path: Path) -> None:
    text = LEAST + '[kafka.librdkafka]\n"some.secret" = "hunter2"\n[handler.options]\nurl = "db://u:hunter2@h"\n'
    assert "hunter2" not in str(shown(loaded(tmp_path, text)))
    assert "hunter2" not in "\n".join(problems(tmp_path, text + "[kafka.librdkafka.x]\n"))
    assert "hunter2" not in "\n".join(problems(tmp_path, environ={"KUNICORN_HANDLER__OPTIONS": "hunter2"}))
    assert "hunter2" not in "\n".join(problems(tmp_path, environ={"KUNICORN_DATABASE": "hunter2"}))


SECRET_PLACES = {
    "a dotted name without quotes, which is three tables": ("[kafka]\n", '[kafka]\nssl.key.password = "hunter2"\n'),
    "the same among librdkafka's properties": ("[group]\n", '[kafka.librdkafka]\nssl.key.pass = "hunter2"\n[group]\n'),
    "a list of tables in a section's place": ("[kafka]\n", '[[kafka]]\nsasl_username = "hunter2"\n'),
    "a handler's options in such a list": ("[handler]\n", '[[handler]]\noptions = {dsn = "hunter2"}\n'),
    "a misspelt section": ("[handler]\n", '[otpl]\nheaders = {authorization = "hunter2"}\n[handler]\n'),
    "a table of a misspelt name": ("[handler]\n", '[otlp]\nheader = {authorization = "hunter2"}\n[handler]\n'),
    "a list in a misspelt table": ("[handler]\n", '[handler]\noption = {dsn = ["a", {b = "hunter2"}]}\n'),
    "a text of a misspelt name": ("[handler]\n", '[handler]\ndsn = "hunter2"\n'),
    "such a text in one of several handlers": ("[handler]\n", '[[handlers]]\ntopics = ["orders"]\ndsn = "hunter2"\n'),
    "a list where a text was to be": ("[kafka]\n", '[kafka]\nclient_id = ["hunter2"]\n'),
    "a list where a table was to be": ("[handler]\n", '[pipeline]\nspark = ["hunter2"]\n[handler]\n'),
    "a text where a table was to be": ("[handler]\n", '[pipeline]\nspark = "hunter2"\n[handler]\n'),
    "a table where a text was to be": ("[kafka]\n", '[kafka]\nclient_id = {x = "hunter2"}\n'),
    "a number among headers": ("[group]\n", '[otlp.headers]\n"x-api-key" = 8347289374\n[group]\n'),
    "a password with a slash": ("[group]\n", '[schema_registry]\nurl = "https://u:hunt/er2@reg:8081"\n[group]\n'),
    "one with a slash behind digits": ("[group]\n", '[schema_registry]\nurl = "https://u:1/hunter2@reg"\n[group]\n'),
    "one with an @": ("[group]\n", '[schema_registry]\nurl = "https://u:x@hunter2@reg:8081"\n[group]\n'),
    "one with a #": ("[group]\n", '[otlp]\nendpoint = "https://u:hunt#er2@c/v1/metrics"\n[group]\n'),
    "one before an address without a scheme": ("[group]\n", '[schema_registry]\nurl = "u:hunter2@reg:8081"\n[group]\n'),
    "one before a broker's address": ('"127.0.0.1:9092"', '"u:hunter2@127.0.0.1:9092"'),
    "the query of a collector's address": ("[group]\n", '[otlp]\nendpoint = "https://c/v1?key=hunter2"\n[group]\n'),
    "a password of the place for runs": ("[group]\n", '[pipeline]\ndirectory = "s3://k:hunter2@b/runs"\n[group]\n'),
    "one with a slash there": ("[group]\n", '[pipeline]\ndirectory = "s3://k:hunt/er2@b/runs"\n[group]\n'),
    "the query of that place": ("[group]\n", '[pipeline]\ndirectory = "abfss://c@a/runs?s=hunter2"\n[group]\n'),
    "beside the sections": ("[kafka]\n", 'dsn = "hunter2"\n[kafka]\n'),
}


@pytest.mark.parametrize("place", SECRET_PLACES)
def test_what_stands_where_it_does_not_belong_is_refused_without_its_value(tmp_path: Path, place: str) -> None:
    told = "\n".join(problems(tmp_path, LEAST.replace(*SECRET_PLACES[place])))
    assert told
    assert not any(part in told for part in ("hunter2", "hunt", "er2", "8347289374"))


def test_of_an_address_that_is_refused_all_but_its_secrets_is_told(tmp_path: Path) -> None:
    url = "https://u:hunter2@reg:8081/subjects"
    assert problem(tmp_path, "schema_registry", f'url = "{url}"').startswith(
        'schema_registry.url = "https://…@reg:8081/subjects": holds credentials; set schema_registry.username and'
    )
    endpoint = problem(tmp_path, "otlp", 'endpoint = "https://c/v1/metrics?api-key=hunter2"')
    assert endpoint.startswith('otlp.endpoint = "https://c/v1/metrics?…": has a ? or a #, and what follows is shown; ')
    place = problem(tmp_path, "pipeline", 'directory = "s3://k:hunter2@runs"')
    assert place.startswith('pipeline.directory = "s3://…@runs": s3://… has a password in it: leave it out')


def test_of_a_table_that_is_refused_the_names_are_told_however_deep_they_are(tmp_path: Path) -> None:
    line = problem(tmp_path, "handler", 'option = {dsn = "hunter2", more = [{port = 1}]}')
    assert line.startswith(
        'handler.option = {"dsn": "(not shown)", "more": [{"port": "(not shown)"}]}: unknown setting'
    )


def test_a_table_in_the_environment_that_is_no_json_is_not_shown(tmp_path: Path) -> None:
    broken = {"KUNICORN_PIPELINE__SPARK": '{"spark.hadoop.fs.s3a.secret.key": "hunter2"'}
    (line,) = problems(tmp_path, environ=broken)
    assert line.startswith("pipeline.spark = (not shown) (from KUNICORN_PIPELINE__SPARK): not a table")


def test_a_list_of_a_known_setting_that_is_refused_is_shown(tmp_path: Path) -> None:
    line = problem(tmp_path, "group", "partition_assignment_strategy = ['range', 'range']")
    assert line.startswith('group.partition_assignment_strategy = ["range", "range"]: ')


def test_of_sparks_settings_a_secret_is_not_shown(tmp_path: Path) -> None:
    """Although it does not belong there."""
    text = LEAST + '[pipeline.spark]\n"spark.hadoop.fs.s3a.secret.key" = "hunter2"\n"spark.executor.cores" = "2"\n'
    text += '"spark.hadoop.fs.azure.account.key.runs" = "hunter2"\n"spark.x" = "jdbc://u:hunter2@h"\n'
    text += '"spark.y" = "jdbc:sqlserver://h;user=me;password=hunter2"\n"spark.z" = "http://[no-url"\n'
    view = shown(loaded(tmp_path, text))
    assert view["pipeline"]["spark"] == {  # type: ignore[index]
        "spark.hadoop.fs.s3a.secret.key": "(not shown)",
        "spark.executor.cores": "2",
        "spark.hadoop.fs.azure.account.key.runs": "(not shown)",
        "spark.x": "(not shown)",
        "spark.y": "(not shown)",
        "spark.z": "http://[no-url",
    }


def test_what_is_shown_is_plain_and_complete(tmp_path: Path) -> None:
    view = shown(loaded(tmp_path, LEAST + '[handler.options]\nregion = "eu"\n'))
    assert view["group"]["topics"] == ["orders"]  # type: ignore[index]
    assert view["handler"]["options"] == {"region": "(not shown)"}  # type: ignore[index]


def test_at_a_desk_only_this_machine_is_answered_unless_the_settings_say_more(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(LEAST)
    assert load(file, {}).http.host == "0.0.0.0"
    assert at_a_desk(load(file, {})).http.host == "127.0.0.1"
    assert at_a_desk(load(file, {"KUNICORN_HTTP__HOST": "0.0.0.0"})).http.host == "0.0.0.0"


def test_a_dotted_name_of_kafkas_own_finds_the_setting_that_is_meant(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(LEAST.replace("[group]\n", '[group]\nauto.offset.reset = "latest"\n'))
    with pytest.raises(ConfigError, match=r"did you mean auto_offset_reset\?"):
        load(file, {})


def test_text_without_quotes_is_told_to_take_some(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[group]\nid = shop\n")
    with pytest.raises(ConfigError, match="text takes quotes"):
        load(file, {})


def test_a_secrets_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(LEAST.replace("[kafka]\n", '[kafka]\nsasl_password_file = "/nope"\nsasl_mechanism = "PLAIN"\n'))
    with pytest.raises(ConfigError) as refused:
        load(file, {})
    assert 'kafka.sasl_password_file = "/nope"' in str(refused.value)
