"""Loading the handler from its entry point."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kunicorn.errors import ExitCode, HandlerLoadError
from kunicorn.handler.lifecycle import Worker
from kunicorn.handler.load import find, keeps_offsets, load

MODULE = "orders_under_test"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module in the current directory, which is not on `sys.path`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield tmp_path / f"{MODULE}.py"
    for name in [name for name in sys.modules if name.startswith(MODULE)]:
        del sys.modules[name]


def error(entrypoint: str) -> str:
    """Why it cannot be loaded."""
    with pytest.raises(HandlerLoadError) as caught:
        load(entrypoint)
    assert caught.value.exit_code is ExitCode.HANDLER
    return str(caught.value)


def test_a_function_in_the_current_directory_is_found(module: Path) -> None:
    module.write_text("def handle(record): return 42")
    handler = load(f"{MODULE}:handle")
    assert handler.call(None) == 42
    assert not handler.is_async
    assert handler.setup is None


def test_an_attribute_path_is_followed(module: Path) -> None:
    module.write_text("class Shop:\n  class Orders:\n    @staticmethod\n    def handle(record): return 42")
    assert load(f"{MODULE}:Shop.Orders.handle").call(None) == 42


@pytest.mark.parametrize(
    "definition",
    [
        "async def handle(record): ...",
        "import functools\nasync def two(a, record): ...\nhandle = functools.partial(two, 1)",
        "class Handle:\n  async def __call__(self, record): ...\nhandle = Handle()",
    ],
)
def test_an_async_handler_is_known_as_one(module: Path, definition: str) -> None:
    module.write_text(definition)
    assert load(f"{MODULE}:handle").is_async


def test_an_instance_brings_its_setup_and_teardown(module: Path) -> None:
    module.write_text(
        "class Handle:\n  def setup(self, options): self.o = options\n  def teardown(self): ...\n"
        "  def __call__(self, record): return self.o\nhandle = Handle()"
    )
    handler = load(f"{MODULE}:handle")
    assert handler.setup is not None
    handler.setup({"a": 1})
    assert handler.call(None) == {"a": 1}
    assert handler.teardown is not None


@pytest.mark.parametrize("entrypoint", ["", "shop", "shop:", ":handle", "shop.:handle", "shop/handlers.py:handle"])
def test_a_malformed_entry_point_is_refused_with_an_example(entrypoint: str) -> None:
    text = error(entrypoint)
    assert repr(entrypoint) in text
    assert "shop.handlers:handle_order" in text


def test_a_missing_module_is_named_with_where_it_was_looked_for(module: Path) -> None:
    text = error("no_such_shop.handlers:handle")
    assert "no module 'no_such_shop'" in text
    assert str(module.parent) in text
    assert "PYTHONPATH" in text


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("a = 1\nimport no_such_library\n", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("a = 1\nb = a / 0\n", "ZeroDivisionError: division by zero"),
        ("a = 1\nb = a / 0\n", "b = a / 0"),
        ("a = 1\ndef handle(record:\n", "SyntaxError"),
    ],
)
def test_what_the_import_of_a_module_ends_by_is_told_with_file_and_line(module: Path, source: str, said: str) -> None:
    module.write_text(source)
    text = error(f"{MODULE}:handle")
    assert said in text
    assert f"{MODULE}.py:2" in text


def test_a_missing_attribute_is_told_with_its_nearest_names(module: Path) -> None:
    module.write_text("def handle_order(record): ...")
    text = error(f"{MODULE}:handle_ordr")
    assert "has no 'handle_ordr'; did you mean 'handle_order'?" in text


def test_a_missing_module_is_told_with_its_nearest_names(module: Path) -> None:
    module.write_text("def handle(record): ...")
    assert f"there is no module '{MODULE}s'" in (text := error(f"{MODULE}s:handle"))
    assert f"Did you mean '{MODULE}'?" in text


def test_a_module_that_is_taken_for_an_attribute_is_told_as_the_module(tmp_path: Path, module: Path) -> None:
    package = tmp_path / f"{MODULE}_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "handlers.py").write_text("def handle(record): ...")
    meant = f"did you mean the module: '{MODULE}_package.handlers"
    assert f"{meant}:…'?" in error(f"{MODULE}_package:handlers")
    assert f"{meant}:handle'?" in error(f"{MODULE}_package:handlers.handle")


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        ("handle = 5", "is int, which cannot be called"),
        ("class handle: ...", "is a class without a method 'handle(self, record)'"),
        ("class handle:\n  def handle(self): ...", "exactly one argument"),
        ("class handle:\n  def __init__(self, url): ...\n  def handle(self, record): ...", "without arguments"),
        ("class handle:\n  setup = 5\n  def handle(self, record): ...", "its setup is int, which cannot be called"),
        ("class handle:\n  def handle(self, record): ...\n  def on_revoked(self): ...", "on_revoked(partitions)"),
        ("class handle:\n  def handle(self, r): ...\n  def on_lost(self, p): yield", "its on_lost contains 'yield'"),
        ("def handle(record): ...\nhandle.setup = lambda: None", "setup(options) or setup(worker, options)"),
        ("def handle(): ...", "exactly one argument"),
        ("def handle(record, context): ...", "exactly one argument"),
        ("def handle(record):\n  yield", "contains 'yield'"),
    ],
)
def test_what_cannot_handle_a_record_is_refused(module: Path, definition: str, why: str) -> None:
    module.write_text(definition)
    assert why in error(f"{MODULE}:handle")


def test_arguments_with_defaults_do_no_harm(module: Path) -> None:
    module.write_text("def handle(record, *, dry_run=False): ...")
    load(f"{MODULE}:handle")


CLASS = """
MADE = []
class Orders:
    def __init__(self): MADE.append(self)
    def setup(self, worker, options): self.told = worker, options
    async def handle(self, record): return self
    def __call__(self, record): ...
    async def on_assigned(self, partitions): ...
    @classmethod
    def on_lost(cls, partitions): ...
    @staticmethod
    def on_revoked(partitions): ...
"""


def test_of_a_class_every_load_makes_one_instance_and_its_method_handle_is_called(module: Path) -> None:
    module.write_text(CLASS)
    assert find(f"{MODULE}:Orders") is not None
    assert sys.modules[MODULE].MADE == [], "looking at it makes none: the template must not have one"
    handler = load(f"{MODULE}:Orders")
    (made,) = sys.modules[MODULE].MADE
    assert handler.call == made.handle
    assert handler.is_async
    assert None not in (handler.on_assigned, handler.on_revoked, handler.on_lost)
    assert handler.teardown is None
    assert not handler.keeps_offsets


def test_a_class_with_call_alone_is_a_handler_too(module: Path) -> None:
    module.write_text("class Orders:\n  def __call__(self, record): return 42")
    assert load(f"{MODULE}:Orders").call(None) == 42


def test_setup_is_told_the_worker_if_it_wants_two_arguments_and_the_options_in_any_case(module: Path) -> None:
    module.write_text(CLASS + "def handle(record): ...\nhandle.setup = lambda options, more=1: options")
    worker = Worker(3, 42, "orders", "kunicorn-worker-3")
    handler = load(f"{MODULE}:Orders")
    handler.setup_in(worker, {"a": 1})
    assert sys.modules[MODULE].MADE[-1].told == (worker, {"a": 1})
    assert load(f"{MODULE}:handle").setup_in(worker, {"a": 1}) == {"a": 1}


def test_an_init_that_raises_is_told_with_where_such_things_belong(module: Path) -> None:
    module.write_text("class Orders:\n  def __init__(self): self.db = 1 / 0\n  def handle(self, record): ...")
    text = error(f"{MODULE}:Orders")
    assert "making an instance raised ZeroDivisionError: division by zero" in text
    assert "belongs into setup(worker, options)" in text
    assert f"{MODULE}.py" in text


MUTE = "class Mute(Exception):\n  def __str__(self): raise KeyError('name')\n"


@pytest.mark.parametrize(
    "source",
    [
        "raise Mute",
        "class Orders:\n  def __init__(self): raise Mute\n  def handle(self, record): ...",
    ],
)
def test_an_exception_that_has_no_message_is_told_without_one(module: Path, source: str) -> None:
    module.write_text(MUTE + source)
    assert "raised Mute: (its __str__ raised KeyError)" in error(f"{MODULE}:Orders")


def test_load_offsets_makes_a_keeper_of_offsets(module: Path) -> None:
    module.write_text("class Orders:\n  def handle(self, r): ...\n  def load_offsets(self, partitions): return {}")
    assert load(f"{MODULE}:Orders").keeps_offsets


def test_a_hook_that_is_none_is_none(module: Path) -> None:
    module.write_text("class Orders:\n  load_offsets = setup = handle = None\n  def __call__(self, r): return 42")
    assert not keeps_offsets(find(f"{MODULE}:Orders"))
    handler = load(f"{MODULE}:Orders")
    assert not handler.keeps_offsets
    assert handler.setup is None
    assert handler.call(None) == 42


def test_an_instance_that_drops_the_load_offsets_of_its_class_is_refused(module: Path) -> None:
    orders = "class Orders:\n  def handle(self, r): ...\n  def load_offsets(self, partitions): return {}\n"
    module.write_text(orders + "  def __init__(self): self.load_offsets = None")
    assert "its class has load_offsets, and its instances have None" in error(f"{MODULE}:Orders")
