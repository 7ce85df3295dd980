"""When a schema registry is asked, and when not. Its client and the clock are played."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka.schema_registry")

from confluent_kafka.schema_registry import SchemaRegistryError

from kunicorn.handler.decode.schema_registry import RegistryAway, _Questions


class Registry:
    """It takes so many seconds for an answer."""

    def __init__(self) -> None:
        self.now, self.takes, self.asked = 0.0, 0.0, 0
        self.answer: object = {"schema": "{}"}
        self.ask = _Questions(self._answer, lambda: self.now)

    def _answer(self, url: str) -> object:
        self.asked += 1
        self.now += self.takes
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_while_it_hangs_nobody_else_takes_its_time_out_and_it_is_asked_again_then(registry: Registry) -> None:
    registry.takes, registry.answer = 5.0, SchemaRegistryError(504, -1, "gateway time-out")
    with pytest.raises(RegistryAway, match="504"):
        registry.ask("schemas/ids/1")
    registry.now += 4.9
    with pytest.raises(RegistryAway, match="504"):
        registry.ask("schemas/ids/2")
    assert (registry.asked, registry.now) == (1, 9.9)
    registry.now, registry.answer = 10.0, {"schema": "{}"}
    assert registry.ask("schemas/ids/2") == {"schema": "{}"}


def test_a_refusal_that_comes_at_once_holds_up_nobody(registry: Registry) -> None:
    registry.takes, registry.answer = 0.01, SchemaRegistryError(503, 503, "not now")
    for _ in range(3):
        with pytest.raises(RegistryAway, match="not now"):
            registry.ask("schemas/ids/1")
    assert registry.asked == 3


def test_what_the_registry_says_of_a_schema_is_an_answer_however_slow(registry: Registry) -> None:
    registry.takes, registry.answer = 5.0, SchemaRegistryError(404, 40403, "Schema 1 not found")
    for _ in range(2):
        with pytest.raises(SchemaRegistryError, match="Schema 1 not found"):
            registry.ask("schemas/ids/1")
    assert registry.asked == 2


@pytest.mark.parametrize(
    "answer",
    [
        SchemaRegistryError(404, -1, "Unknown Schema Registry Error: b'404 page not found'"),
        SchemaRegistryError(404, None, None),  # type: ignore[arg-type]
        SchemaRegistryError(401, 401, "Unauthorized"),
        ValueError("Expecting value: line 1 column 1 (char 0)"),
        None,
    ],
    ids=repr,
)
def test_what_is_no_answer_of_a_registrys_is_none(registry: Registry, answer: object) -> None:
    registry.answer = answer
    with pytest.raises(RegistryAway):
        registry.ask("schemas/ids/1")
