"""What users import comes from `kunicorn`, `kunicorn.testing` and `kunicorn.pipeline`: nothing that they read shows
another path. Inside the package, modules do not import one another by these names."""

from __future__ import annotations

import ast
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import kunicorn
import kunicorn.pipeline
import kunicorn.testing
from kunicorn.errors import HandlerLoadError
from kunicorn.handler.dead_letters import cause_of
from kunicorn.handler.decode import NotDecodableYet, Undecodable
from kunicorn.handler.encode import NotEncodableYet, Unencodable
from kunicorn.handler.lifecycle import Worker
from kunicorn.handler.load import DrainDeadline, HandlerTimeout, load
from kunicorn.handler.middleware import Call
from kunicorn.handler.outcome import (
    BatchError,
    DeadLetter,
    Done,
    Halt,
    NotToBeSent,
    Outcome,
    Retry,
    Send,
    Skip,
    Wait,
)
from kunicorn.handler.record import Batch, Origin, Record
from kunicorn.handler.retry import find
from kunicorn.positions import TopicPartition

ROOT = Path(__file__).parents[2]
SERVICE = ROOT / "service"
DEFINED: dict[str, type] = {
    each.__name__: each
    for each in (
        *(Batch, Call, Record, Origin, TopicPartition, Worker, Send, NotToBeSent),
        *(Outcome, Done, Skip, DeadLetter, Halt, Retry, Wait, BatchError),
        *(Undecodable, NotDecodableYet, Unencodable, NotEncodableYet, DrainDeadline, HandlerTimeout),
    )
}
EXCEPTIONS = sorted(name for name, each in DEFINED.items() if issubclass(each, BaseException))
PACKAGES = {each.__name__: each for each in (kunicorn, kunicorn.testing, kunicorn.pipeline)}
HANDLERS_PAGE = (ROOT / "docs" / "handlers.md").read_text()
READ = sorted(
    path
    for pattern in ("README.md", "docs/**/*.md", "examples/*.py", "config.example.toml", "deploy/**/*")
    for path in ROOT.glob(pattern)
    if path.is_file() and path.suffix in {".md", ".py", ".toml", ".yaml", ".json", ".tpl", ".txt", ""}
)
"""What users read, and copy from."""
PLAYED = sorted(ROOT.glob("tests/**/*.py"))
_IMPORT = re.compile(r"^[ \t>]*(?:from (kunicorn[\w.]*) import ([^\n#\\]+)|import (kunicorn\.[\w.]+))", re.MULTILINE)


@pytest.mark.parametrize("name", kunicorn.__all__)
def test_a_public_name_is_the_object_that_its_module_defines(name: str) -> None:
    assert getattr(kunicorn, name) is DEFINED[name]


def test_every_public_name_is_listed_once_and_in_order() -> None:
    assert kunicorn.__all__ == sorted(DEFINED)
    assert set(kunicorn.__all__) <= set(dir(kunicorn))
    assert set(kunicorn.pipeline.__all__) <= set(dir(kunicorn.pipeline))


def test_type_checkers_are_told_the_same_modules() -> None:
    for package in (kunicorn, kunicorn.pipeline):
        assert package.__file__ is not None
        told = {
            name.name: node.module
            for node in ast.walk(ast.parse(Path(package.__file__).read_text()))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kunicorn.")
            for name in node.names
        }
        assert vars(package)["_MODULES"] == told
        assert sorted(told) == package.__all__


def test_a_star_import_gives_all_of_them() -> None:
    names: dict[str, object] = {}
    exec("from kunicorn import *", names)
    assert DEFINED.items() <= names.items()


def test_importing_the_package_loads_nothing_else() -> None:
    program = (
        "import sys; before = set(sys.modules); import kunicorn; kunicorn.__version__; dir(kunicorn);"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=SERVICE, capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout.split() == ["kunicorn"]


def test_an_outcome_loads_no_client() -> None:
    program = "import sys; from kunicorn import Skip, Send, Worker, TopicPartition; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=SERVICE, capture_output=True, text=True, check=True, timeout=240
    )
    assert not {"confluent_kafka", "pydantic", "kunicorn.handler.record"} & set(done.stdout.split())


def test_an_unknown_name_says_which_there_are() -> None:
    # The comments for mypy are tests, too: it complains of one that is not needed.
    with pytest.raises(AttributeError) as refused:
        kunicorn.Ship  # type: ignore[attr-defined]  # noqa: B018
    assert str(refused.value).startswith("module 'kunicorn' has no attribute 'Ship'; it has Batch, BatchError, ")
    with pytest.raises(AttributeError) as refused:
        kunicorn.pipeline.Ship  # type: ignore[attr-defined]  # noqa: B018
    assert str(refused.value).endswith("has no attribute 'Ship'; it has KunicornDataSource, transform")


@pytest.mark.parametrize(
    "line", ["from kunicorn import Ship", "from kunicorn.ships import Ship", "import kunicorn.ships"]
)
def test_a_handler_that_imports_what_is_not_there_is_told_what_is(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lost_shop.py").write_text(f"{line}\ndef handle(record): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(HandlerLoadError, match="handlers import from kunicorn: Batch, BatchError, Call, DeadLetter, "):
        load("lost_shop:handle")


def test_modules_inside_are_still_found_beside_the_names() -> None:
    from kunicorn.handler import record

    assert record.Origin is kunicorn.Origin


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_an_exception_is_named_in_rules_and_dead_letters_as_it_is_imported(name: str) -> None:
    kind = DEFINED[name]
    assert find(f"kunicorn.{name}") is kind
    made: dict[type, BaseException] = {BatchError: BatchError(done=1), Wait: Wait(5, "why")}
    raised = made.get(kind) or kind("why")
    assert isinstance(raised, BaseException)
    assert cause_of(raised, 1).type == f"kunicorn.{name}"


@pytest.mark.parametrize(
    "said",
    [
        Done(), Skip("odd"), DeadLetter("why"), Halt("why"), Retry("locked", timedelta(seconds=5)),
        Wait(timedelta(seconds=5), "the limit"),
        BatchError("bad", done=3), BatchError(failed=7), Undecodable("no JSON"), NotDecodableYet("away"),
        DrainDeadline(), HandlerTimeout(), NotToBeSent("no text"),
    ],
    ids=repr,
)  # fmt: skip
def test_an_exception_survives_the_way_out_of_a_process_pool(said: BaseException) -> None:
    came = pickle.loads(pickle.dumps(said))
    assert type(came) is type(said)
    assert (came.args, vars(came)) == (said.args, vars(said))


def test_the_page_lists_every_public_name() -> None:
    section = HANDLERS_PAGE.partition("\n## Public names\n")[2].partition("\n## ")[0]
    assert section
    listed: dict[str, list[str]] = {name: [] for name in PACKAGES}
    for first, second in re.findall(r"^\| (`.+?) \| (.+?) \|$", section, re.MULTILINE):
        package = re.match(r"`(kunicorn\.\w+)`", first)
        listed[package[1] if package else "kunicorn"] += re.findall(r"`(\w+)`", second if package else first)
    for name, module in PACKAGES.items():
        assert sorted(listed[name], key=str.lower) == sorted(vars(module)["__all__"], key=str.lower), name


def imported(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each import of ours in `text`, be it code or prose: the module, and the names from it."""
    for module, names, whole in _IMPORT.findall(text):
        yield (module, re.findall(r"\w+", names.replace("(", " "))) if module else (whole, [])


@pytest.mark.parametrize("path", READ, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_that_users_read_shows_a_private_path(path: Path) -> None:
    text = path.read_text()
    for module, names in imported(text):
        assert module in PACKAGES, f"{path} imports {module}"
        assert set(names) <= set(vars(PACKAGES[module])["__all__"]), path
    # `kunicorn.handler.outcome.Skip` in prose, or as an exception in a rule.
    for module, name in re.findall(r"\b(kunicorn(?:\.[a-z_]+)*)\.([A-Z]\w*[a-z]\w*)\b", text):
        assert module in PACKAGES, f"{path} names {module}.{name}"
        assert name in vars(PACKAGES[module])["__all__"], path


def test_handlers_in_strings_of_tests_are_written_as_users_would_write_them() -> None:
    shown = []
    for path in PLAYED:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                shown += [
                    (path.name, module)
                    for module, names in imported(node.value)
                    if module not in PACKAGES and DEFINED.keys() & set(names)
                ]
    assert shown == []


def test_inside_the_package_modules_import_one_another_by_their_real_names() -> None:
    shortcuts = [
        f"{path.relative_to(SERVICE)}:{node.lineno}"
        for path in sorted(SERVICE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "kunicorn"
        if {name.name for name in node.names} & DEFINED.keys()
    ]
    assert shortcuts == []


def test_messages_and_docstrings_name_what_can_be_imported() -> None:
    found = []
    for path in sorted(SERVICE.rglob("*.py")):
        for module, name in re.findall(r"\b(kunicorn\.[a-z_.]+)\.([A-Z]\w*)\b", path.read_text()):
            if name in DEFINED and module not in PACKAGES:
                found.append(f"{path.relative_to(SERVICE)}: {module}.{name}")
    assert found == []
