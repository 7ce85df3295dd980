"""Decoders, the schema registry and the bounds of batches, as settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from kunicorn.clients.config import handler_configs
from kunicorn.handler.config import Batching, Decoding
from kunicorn.settings import shown
from kunicorn.settings.security import without_secrets
from tests.unit.settings.files import LEAST, loaded, problems

REGISTRY = '[schema_registry]\nurl = "https://registry.example.com"\n'


def test_decoding_is_off_by_default(tmp_path: Path) -> None:
    assert handler_configs(loaded(tmp_path))[0].decoding == Decoding("bytes", "bytes", {}, None)
    assert handler_configs(loaded(tmp_path))[0].batching == Batching(None, 0, 32 * 1024 * 1024)


@pytest.mark.parametrize("name", ["text", "json", "shop.decoders:order"])
def test_a_decoder_is_named_or_the_users_own(tmp_path: Path, name: str) -> None:
    assert handler_configs(loaded(tmp_path, LEAST + f'value = "{name}"\n'))[0].decoding.value == name


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            'value = "xml"',
            "no decoder; it can be bytes, text, json, avro, jsonschema, protobuf:package.module_pb2:",
        ),
        ('key = "protobuf"', "protobuf needs the message's class; write protobuf:package.module_pb2:Message"),
        ('value = "avro"', "needs schemas, but schema_registry.url is not set; set it"),
        ('key = "protobuf:shop.pb2:Order"', "needs schemas, but schema_registry.url is not set; set it"),
        ("batch_max_ms = -1", "too small; the least is 0"),
        ('on_undecodable = "drop"', "not a value it can have"),
    ],
)
def test_what_cannot_be_is_refused_with_what_would_be_right(tmp_path: Path, line: str, why: str) -> None:
    (found,) = problems(tmp_path, LEAST + line + "\n")
    assert found.startswith(f"handler.{line.split(' ', maxsplit=1)[0]}")
    assert why in found


def test_the_registry_is_asked_with_the_password_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hush\n")
    text = LEAST + 'value = "avro"\n' + REGISTRY + f'username = "orders"\npassword_file = "{tmp_path}/password"\n'
    decoding = handler_configs(loaded(tmp_path, text))[0].decoding
    assert decoding.schema_registry == {
        "url": "https://registry.example.com",
        "basic.auth.user.info": "orders:hush",
        "timeout": 5.0,
        "max.retries": 0,
    }
    assert "hush" not in repr(decoding)


def test_the_last_password_of_the_registry_counts_while_its_file_is_written_anew(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hush\n")
    registry = loaded(tmp_path, LEAST + REGISTRY + f'username = "orders"\npassword_file = "{file}"\n').schema_registry
    file.write_text("")
    assert registry.secret() == "hush"
    file.unlink()
    assert registry.secret() == "hush"
    file.write_text("renewed\n")
    assert registry.secret() == "renewed"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ('url = "https://me:hush@registry"', "holds credentials; set schema_registry.username and password instead"),
        ('url = "registry:8081"', "not an address"),
        ('url = "https://registry:abc"', "not an address"),
        ('username = "me"', "goes with password (or password_file); set both, or neither"),
        ('username = "me"\npassword_file = "/no/such"', "cannot be read: No such file or directory"),
        ('ssl_key_location = "/key"', "a key without its certificate"),
    ],
)
def test_a_registry_that_cannot_be_asked_is_refused(tmp_path: Path, lines: str, why: str) -> None:
    url = "" if "url" in lines else 'url = "https://registry.example.com"\n'
    found = problems(tmp_path, LEAST + "[schema_registry]\n" + url + lines + "\n")
    assert any(why in line for line in found)
    assert "hush" not in "".join(found)


def test_the_registrys_password_is_shown_nowhere_and_kept_from_the_handlers_processes(tmp_path: Path) -> None:
    environ = {"KUNICORN_SCHEMA_REGISTRY__PASSWORD": "hush", "KUNICORN_SCHEMA_REGISTRY__USERNAME": "me"}
    settings = loaded(tmp_path, LEAST + REGISTRY, environ)
    assert "hush" not in str(shown(settings)) + repr(settings)
    assert without_secrets(environ) == {"KUNICORN_SCHEMA_REGISTRY__USERNAME": "me"}


def test_dead_letters_of_undecodable_records_need_a_topic_too(tmp_path: Path) -> None:
    assert loaded(tmp_path, LEAST + 'on_undecodable = "dead_letter"\n').dead_letter_topic == "orders.dead-letters"
