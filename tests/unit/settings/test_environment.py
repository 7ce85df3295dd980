"""The environment: what it sets, and which variables are none of our business."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.settings.files import LEAST, loaded, problems


def test_a_variable_goes_before_the_file(tmp_path: Path) -> None:
    text = LEAST + "[http]\nport = 1\nhost = '127.0.0.1'\n"
    settings = loaded(tmp_path, text, {"KUNICORN_HTTP__PORT": "9500"})
    assert (settings.http.port, settings.http.host) == (9500, "127.0.0.1")


def test_the_environment_alone_can_set_everything(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path,
        "",
        {
            "KUNICORN_KAFKA__BOOTSTRAP_SERVERS": "a:1, b:2",
            "KUNICORN_GROUP__ID": "0815",
            "KUNICORN_GROUP__TOPICS": '["orders", "^a,b"]',
            "KUNICORN_HANDLER__ENTRYPOINT": "shop:handle",
            "KUNICORN_HANDLER__OPTIONS": '{"limit": 5}',
            "KUNICORN_HTTP__ENABLED": "false",
        },
    )
    assert settings.kafka.bootstrap_servers == ("a:1", "b:2")
    assert settings.group.id == "0815"
    assert settings.group.topics == ("orders", "^a,b")
    assert settings.handler.options == {"limit": 5}
    assert settings.http.enabled is False


def test_a_table_in_a_variable_is_put_into_the_files_and_a_list_replaces_it(tmp_path: Path) -> None:
    text = LEAST + "[handler.options]\na = 1\nb = {c = [1, 2], d = 2}\n"
    options = loaded(tmp_path, text, {"KUNICORN_HANDLER__OPTIONS": '{"z": 9, "b": {"c": [5]}}'}).handler.options
    assert options == {"a": 1, "b": {"c": [5], "d": 2}, "z": 9}


def test_a_wrong_value_names_the_variable_it_came_from(tmp_path: Path) -> None:
    assert problems(tmp_path, environ={"KUNICORN_WORKERS__COUNT": "four"}) == [
        'workers.count = "four" (from KUNICORN_WORKERS__COUNT): not a whole number; write it in digits, without quotes'
    ]


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("KUNICORN_GRUOP__ID", "did you mean [group]?"),
        ("KUNICORN_GROUP__IDD", "did you mean id?"),
        ("KUNICORN_HTTP_PORT", "did you mean KUNICORN_HTTP__PORT?"),
        ("KUNICORN_WORKERS", "did you mean KUNICORN_WORKERS__COUNT?"),
        ("KUNICORN_DATABASE", "variables are named KUNICORN_<SECTION>__<NAME>"),
        ("KUNICORN_", "variables are named KUNICORN_<SECTION>__<NAME>"),
    ],
)
def test_an_unknown_variable_is_refused(tmp_path: Path, variable: str, words: str) -> None:
    (line,) = problems(tmp_path, environ={variable: "1"})
    assert variable in line
    assert words in line


def test_a_settings_variable_in_small_letters_is_not_passed_over(tmp_path: Path) -> None:
    environ = {"kunicorn_workers__count": "4", "kunicorn_version": "1", "Kunicorn_group__nobody": "x"}
    assert problems(tmp_path, environ=environ) == [
        "kunicorn_workers__count: settings' variables are in capitals; write KUNICORN_WORKERS__COUNT"
    ]
    assert loaded(tmp_path, environ={**environ, "KUNICORN_WORKERS__COUNT": "4"}).workers.count == 4


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KUNICORN_SERVICE_HOST", "10.0.0.1"),
        ("KUNICORN_SERVICE_PORT", "9400"),
        ("KUNICORN_SERVICE_PORT_METRICS", "9400"),
        ("KUNICORN_PORT", "tcp://10.0.0.1:9400"),
        ("KUNICORN_HTTP_PORT", "tcp://10.0.0.1:9400"),
        ("KUNICORN_PORT_9400_TCP", "tcp://10.0.0.1:9400"),
        ("KUNICORN_ORDERS_PORT_9400_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_variables_that_kubernetes_makes_of_a_service_do_not_keep_the_pod_from_starting(
    tmp_path: Path, variable: str, value: str
) -> None:
    assert loaded(tmp_path, environ={variable: value}) == loaded(tmp_path)


def test_other_programs_variables_are_left_alone(tmp_path: Path) -> None:
    others = {"KAFKA_HOME": "x", "kunicorn_http_port": "1", "UNICORN_X": "y"}
    assert loaded(tmp_path, environ=others) == loaded(tmp_path)
