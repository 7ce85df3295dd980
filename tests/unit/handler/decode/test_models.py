"""Handlers whose parameter is annotated with a model."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from confluent_kafka import Message
from pydantic_core import PydanticCustomError

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.config import Decoding
from kunicorn.handler.decode import Undecodable
from kunicorn.handler.decode.forms import Form, Plain, form_of
from kunicorn.handler.decode.models import model_of
from kunicorn.handler.record import Batch, Record

if TYPE_CHECKING:
    from elsewhere import Strange  # type: ignore[import-not-found]


class Kind(enum.Enum):
    """Of orders."""

    NEW = "new"


class PydanticOrder(pydantic.BaseModel):
    """By pydantic."""

    id: int
    total: float

    @pydantic.field_validator("total")
    @classmethod
    def _positive(cls, total: float) -> float:
        if total < 0:
            raise ValueError(f"a negative total of {total}")
        return total


class StructOrder(msgspec.Struct):
    """By msgspec."""

    id: int
    total: float
    kind: Kind = Kind.NEW


class Size(enum.IntEnum):
    """Of orders."""

    SMALL = 1


class SealedOrder(msgspec.Struct, forbid_unknown_fields=True):
    """One that has no other fields."""

    size: Size = Size.SMALL


class Cat(pydantic.BaseModel):
    """One of two."""

    kind: Literal["cat"]
    lives: int


class Dog(pydantic.BaseModel):
    """The other one."""

    kind: Literal["dog"]


def _unwanted(text: str) -> str:
    raise PydanticCustomError("unwanted", "nobody wants {text}", {"text": text})


class SealedPet(pydantic.BaseModel, extra="forbid"):
    """A choice by a tag, and what has keys of the record's own."""

    animal: Cat | Dog | None = pydantic.Field(None, discriminator="kind")
    owners: dict[str, dict[str, Dog]] = {}
    count: int = pydantic.Field(1, alias="theCount")
    sizes: list[int] = []
    text: Annotated[str, pydantic.AfterValidator(_unwanted)] = ""


@dataclass
class DataOrder:
    """By the standard library."""

    id: int
    total: float


@dataclass
class Payment:
    """One that looks at itself."""

    card: str

    def __post_init__(self) -> None:
        raise ValueError(f"{self.card} is no card")


class Payments(msgspec.Struct):
    """Several of them."""

    each: list[Payment]


class Refund(msgspec.Struct, tag=True):
    """One choice."""

    id: int


class Sale(msgspec.Struct, tag=True):
    """The other."""

    id: int


def message(value: bytes | None, offset: int = 7) -> Message:
    """One record."""
    return Message(topic="orders", partition=3, offset=offset, value=value, key=b"k")


def pydantic_order(order: PydanticOrder) -> None: ...
def struct_order(order: StructOrder) -> None: ...
def data_order(order: DataOrder) -> None: ...
def maybe(order: StructOrder | None) -> None: ...
def choice(order: Refund | Sale) -> None: ...
def batched(orders: list[StructOrder]) -> None: ...
def sequence(orders: Sequence[PydanticOrder | None], batch: Batch) -> None: ...
def both(order: DataOrder, record: Record) -> None: ...
def with_default(order: DataOrder, verbose: bool = False) -> None: ...
def two(prefix: str, order: StructOrder) -> None: ...
def plain(record: Record) -> None: ...
def plain_batch(records: Batch) -> None: ...
def records(some: list[Record]) -> None: ...
def unannotated(record) -> None: ...  # type: ignore[no-untyped-def]
def strange(order: Strange) -> None: ...
def mixed(order: PydanticOrder | StructOrder) -> None: ...


def sealed_order(order: SealedOrder) -> None: ...


def sealed_pet(pet: SealedPet) -> None: ...


def paid(payment: Payment) -> None: ...
def all_paid(payments: Payments) -> None: ...


class Handler:
    """An object that is called."""

    def __call__(self, order: StructOrder) -> None: ...

    def handle(self, order: StructOrder) -> None:
        """A method."""


def form(handle: Callable[..., Any], mode: str = "record", value: str = "bytes") -> Form:
    return form_of(handle, mode, Decoding(value))


def one(handle: Callable[..., Any], value: bytes | None, by: str = "bytes") -> Any:
    """What the handler gets."""
    return next(form(handle, value=by).each([message(value)]))


@pytest.mark.parametrize(
    ("handle", "model"),
    [
        (pydantic_order, PydanticOrder(id=1, total=2.5)),
        (struct_order, StructOrder(1, 2.5)),
        (data_order, DataOrder(1, 2.5)),
        (maybe, StructOrder(1, 2.5)),
        (Handler(), StructOrder(1, 2.5)),
        (Handler().handle, StructOrder(1, 2.5)),
        (with_default, DataOrder(1, 2.5)),
        (functools.partial(two, "x"), StructOrder(1, 2.5)),
        (functools.wraps(struct_order)(lambda *arguments: None), StructOrder(1, 2.5)),
    ],
)
@pytest.mark.parametrize("by", ["bytes", "json", "json:loads"])
def test_a_handler_gets_an_instance_of_what_its_parameter_is_annotated_with(
    handle: Callable[..., Any], model: object, by: str
) -> None:
    assert one(handle, b'{"id": 1, "total": 2.5}', by) == model


def test_a_choice_of_models_is_made_by_their_tags() -> None:
    assert one(choice, b'{"type": "Sale", "id": 1}') == Sale(1)


@pytest.mark.parametrize("handle", [plain, plain_batch, records, unannotated, print, Handler])
def test_other_handlers_get_the_record(handle: Callable[..., Any]) -> None:
    if handle is not Handler:
        assert isinstance(form(handle), Plain)


def test_a_second_parameter_gets_the_record() -> None:
    order, record = one(both, b'{"id": 1, "total": 2.5}')
    assert order == DataOrder(1, 2.5)
    assert (record.offset, record.value, record.key_data) == (7, b'{"id": 1, "total": 2.5}', b"k")
    assert record.data is order


def test_a_batch_is_a_list_of_models_and_a_second_parameter_gets_the_batch() -> None:
    messages = [message(b'{"id": 1, "total": 2.5}'), message(None, 8)]
    gathered = form(batched, "batch").batch(messages)
    assert (gathered.argument, gathered.records) == ([StructOrder(1, 2.5)], 1)
    assert str(gathered.undecodable).startswith("orders-3@8: its value is no JSON of StructOrder: it is null (a tomb")
    orders, batch = form(sequence, "batch").batch(messages).argument
    assert orders == [PydanticOrder(id=1, total=2.5), None]
    assert (batch.offsets(), batch.data()) == ([7, 8], orders)


@pytest.mark.parametrize(
    ("handle", "value", "why"),
    [
        (struct_order, b'{"id": "4111", "total": 2}', "JSON of StructOrder: Expected `int`, got `str` - at `$.id`"),
        (struct_order, b'{"id": 1, "total": 2, "kind": "4111"}', "Invalid enum value '…' - at `$.kind`"),
        (struct_order, b'{"id": 1', "JSON of StructOrder: Input data was truncated"),
        (struct_order, b"[" * 100_000, "JSON of StructOrder: "),
        (struct_order, None, "it is null (a tombstone); a parameter annotated with 'StructOrder | None' gets None"),
        (pydantic_order, b'{"id": "x4111", "total": 2}', "id: Input should be a valid integer"),
        (pydantic_order, b'{"id": 1, "total": -4111}', "total: refused by a validator (value_error)"),
        (pydantic_order, b"4111 x", "Invalid JSON: trailing characters at line 1 column 6"),
        (pydantic_order, b'{"id": 1' + b"1" * 5000 + b', "total": 1}', "JSON of PydanticOrder: "),
        (data_order, b'{"id": 1}', "JSON of DataOrder: Object missing required field `total`"),
        (data_order, b'{"id": 99999999999999999999999, "total": NaN}', "JSON of DataOrder: "),
        (choice, b'{"type": "4111", "id": 1}', "Invalid value '…' - at `$.type`"),
        (choice, b'{"type": "4111\\n4111", "id": 1}', "Invalid value '…' - at `$.type`"),
        (struct_order, b'{"id": 1, "total": 2, "kind": "O\'4111"}', "Invalid enum value '…' - at `$.kind`"),
        (struct_order, b'{"id": 1, "total": 2, "kind": "\' - at `$.4111`"}', "Invalid enum value '…' - at `$.kind`"),
        (sealed_order, b'{"size": 4111}', "Invalid enum value '…' - at `$.size`"),
        (sealed_order, b'{"4111": 1}', "Object contains unknown field '…'"),
        (paid, b'{"card": "4111"}', "JSON of Payment: refused by a validator (ValueError)"),
        (all_paid, b'{"each": [{"card": "4111"}]}', "refused by a validator (ValueError) - at `$.each[0]`"),
        (sealed_pet, b'{"animal": {"kind": "4111"}}', "animal: its tag is none of those that are known"),
        (
            sealed_pet,
            b'{"animal": {"kind": "cat", "lives": "4111 x"}}',
            "animal.cat.lives: Input should be a valid int",
        ),
        (sealed_pet, b'{"owners": {"4111": {"x4111": {}}}}', "owners.[...].[...].kind: Field required"),
        (sealed_pet, b'{"theCount": "4111 x"}', "theCount: Input should be a valid integer"),
        (sealed_pet, b'{"sizes": [1, "4111 x"]}', "sizes.1: Input should be a valid integer"),
        (sealed_pet, b'{"4111": 1}', "[...]: Extra inputs are not permitted"),
        (sealed_pet, b'{"text": "4111"}', "text: refused by a validator (unwanted)"),
    ],
)
def test_what_is_no_such_model_is_undecodable_and_its_content_is_not_told(
    handle: Callable[..., Any], value: bytes | None, why: str
) -> None:
    with pytest.raises(Undecodable) as refused:
        form(handle).blame(message(value))
    assert str(refused.value).startswith("orders-3@7: its value is no ")
    assert why in str(refused.value)
    assert "4111" not in str(refused.value)


def test_a_tombstone_is_none_where_the_model_may_be() -> None:
    assert one(maybe, None) is None
    assert one(maybe, None, "json:loads") is None


@pytest.mark.parametrize(
    ("handle", "mode", "value", "why"),
    [
        (struct_order, "batch", "bytes", "annotate it with list[…] of the model"),
        (batched, "record", "bytes", 'annotate it with the model itself, or set handler.mode = "batch"'),
        (struct_order, "record", "text", "the handler's parameter wants StructOrder"),
        (strange, "record", "bytes", "import the name outside of 'if TYPE_CHECKING'"),
        (mixed, "record", "bytes", "a choice between models of pydantic and others"),
    ],
)
def test_annotations_that_cannot_be_served_are_refused_at_the_start(
    handle: Callable[..., Any], mode: str, value: str, why: str
) -> None:
    with pytest.raises(HandlerLoadError) as refused:
        form(handle, mode, value)
    assert why in str(refused.value)


def test_a_name_imported_for_type_checkers_only_is_harmless_where_it_is_the_record() -> None:
    def handle(record: records.Record) -> None: ...  # type: ignore[name-defined]

    assert model_of(handle, "record") is None
