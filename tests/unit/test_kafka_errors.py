"""One table has what is said of Kafka's error codes: every code is in it, with something that a person can do."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode as EveryErrorCode

import kunicorn
from kunicorn.kafka_errors import ErrorCode, describe, fault

PACKAGE = Path(kunicorn.__file__).parent
TABLES = {PACKAGE / "kafka_errors.py", PACKAGE / "librdkafka" / "errors.py"}
WORDS_OF_REMEDIES = re.compile(r"this user needs|grant this user|(ask )?whoever runs the cluster|create the topic")
SOMETHING_TO_DO = re.compile(
    r"\b(nothing .* done|wait|see|create|correct|start|make|raise|lower|give|choose|have|set|try|stop|upgrade|report"
    r"|run|ask|use|look|join|needs)\b"
)


def test_codes_have_their_names() -> None:
    assert describe(27) == "REBALANCE_IN_PROGRESS (27)"
    assert describe(ErrorCode.UNKNOWN_SERVER_ERROR) == "UNKNOWN_SERVER_ERROR (-1)"
    assert describe(58) == "SASL_AUTHENTICATION_FAILED (58)"


def test_a_code_from_the_future_has_its_number_and_a_remedy() -> None:
    assert describe(999) == "error 999"
    assert SOMETHING_TO_DO.search(fault(999).remedy())


@pytest.mark.parametrize("code", EveryErrorCode)
def test_every_code_of_kafka_has_a_row_with_its_number_and_whether_to_try_again(
    code: EveryErrorCode,
) -> None:
    row = fault(code.value)
    assert (row.code, row.name, row.retriable) == (code.value, code.name.upper(), code.retriable)
    assert ErrorCode(code.value).name == row.name


@pytest.mark.parametrize("code", ErrorCode)
def test_every_remedy_names_something_to_do(code: ErrorCode) -> None:
    said = fault(code).remedy()
    assert SOMETHING_TO_DO.search(said), said
    assert not re.search(r"[{}]", said)


def test_a_remedy_names_who_asked_for_what() -> None:
    denied = fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert denied.remedy() == "this user needs DESCRIBE and READ on the topic"
    assert denied.remedy(topic="topic 'orders'", rights="WRITE") == "this user needs WRITE on topic 'orders'"
    barred = fault(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert barred.remedy(group="group 'shop'") == "this user needs READ on group 'shop'"
    unknown = fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert unknown.remedy(setting="group.topics") == "create the topic, or correct group.topics"


@cache
def modules() -> list[tuple[Path, ast.Module]]:
    """All others of the service."""
    return [(path, ast.parse(path.read_text())) for path in sorted(PACKAGE.rglob("*.py")) if path not in TABLES]


def is_code(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Attribute) and ast.unparse(key.value) in {"ErrorCode", "KafkaError"}


def is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str))


def test_no_other_module_has_a_table_of_texts_by_error_code() -> None:
    found = [
        f"{path.name}:{node.lineno}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if is_code(key) and is_text(value)
    ]
    assert not found


def test_no_other_module_words_a_remedy_for_an_error_code() -> None:
    found = [
        f"{path.name}:{node.lineno}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and WORDS_OF_REMEDIES.search(node.value)
    ]
    assert not found
