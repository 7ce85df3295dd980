"""config.example.toml and docs/settings.md say what the code says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from kunicorn.settings import load
from kunicorn.settings.generate.pages import example, page
from kunicorn.settings.load import sections
from kunicorn.settings.security import SecuritySettings

ROOT = Path(__file__).parents[3]


def test_the_example_file_is_current() -> None:
    assert (ROOT / "config.example.toml").read_text() == example(), "run `python -m kunicorn.settings`"


def test_the_settings_page_is_current() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == page(), "run `python -m kunicorn.settings`"


def test_the_example_file_loads_as_it_is() -> None:
    assert load(ROOT / "config.example.toml", {}).group.topics == ("orders", "^refunds-.*")


def _without_handlers(text: str) -> str:
    """[handler] and [[handlers]] exclude one another."""
    return text.partition("# Several handlers")[0]


def test_the_example_file_loads_with_everything_uncommented_that_goes_together(tmp_path: Path) -> None:
    everything = re.sub(r'^# (?=\[|"?[\w.]+"? = )', "", _without_handlers(example()), flags=re.MULTILINE)
    path = tmp_path / "config.toml"
    # One cannot log in by password and by token, have files that are not there, cut what is ordered, send outputs of
    # several records in hand, name columns of records or schemas of bytes, nor a key's header where all have one rate,
    # nor an assignor of brokers that do not assign: those have tests of their own.
    apart = "|".join(
        [
            *SecuritySettings.model_fields,
            "token_file",
            "group_remote_assignor",
            "tls_certificate_file",
            "tls_key_file",
            "password_file",
            "headers_file",
            "min_partitions",
            "concurrency",
            "header",
            "value_schema",
            "key_schema",
        ]
    )
    apart += "|function|none_of|prefix|exists"  # Of a filter's conditions one is said.
    path.write_text(re.sub(rf"^({apart}) = .*\n", "", everything, flags=re.MULTILINE))
    load(path, {})
    named = tomllib.loads(everything)
    assert {name: set(model.model_fields) for name, model in sections().items()} == {
        name: set(table) for name, table in named.items()
    }


def rows() -> dict[str, tuple[str, str]]:
    """Default and values of each setting, as docs/settings.md has them."""
    found = re.findall(r"^\| `([\w.\[\]]+)`(?:<br>`\w+`)? \| (.*?) \| (.*?) \| ", page(), flags=re.MULTILINE)
    return {name: (default, values) for name, default, values in found}


def test_a_number_that_may_be_left_out_is_told_with_its_bounds() -> None:
    told = rows()
    for name in ("retry_timeout_ms", "max_age_s", "failures[].max_attempts", "rate_limit.burst"):
        assert told[name][1] == "number, at least 1"
    assert [name for name, (_, values) in told.items() if values == "number"] == []


def test_a_default_in_words_does_not_look_like_a_value() -> None:
    sentence = re.compile(r'`[^`<\["{]+ [^`]+`')
    assert {name: default for name, (default, _) in rows().items() if sentence.fullmatch(default)} == {}


def test_every_setting_says_what_it_means() -> None:
    silent = [f"{s}.{name}" for s, m in sections().items() for name, f in m.model_fields.items() if not f.description]
    assert silent == []
