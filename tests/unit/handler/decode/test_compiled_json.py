"""The compiled reader of JSON on documents made and spoilt at random: what it reads is what pyarrow makes of it, to the
bit, and nothing is read that pyarrow refuses.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice, permutations
from random import Random
from typing import Any

import orjson
import pyarrow as pa
import pytest

from kunicorn.handler.decode.json_columns import JsonReader
from tests.compiled import compiled
from tests.fakes.spoiling import spoilt

_WHOLE = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}
_UNSIGNED = {pa.uint8(): 8, pa.uint16(): 16, pa.uint32(): 32, pa.uint64(): 64}
_PLAIN = [pa.bool_(), *_WHOLE, *_UNSIGNED, pa.float32(), pa.float64(), pa.string(), pa.large_string()]
_NAMES = ("id", "a", "", "größe", 'quo"ted', "of\n", "aa", "ab")
_TEXTS = ("", "plain", "ein längerer Text ohne Ende " * 4, 'a "quote"', "back\\slash", "\0\x1f\x7f", "€", "😀", "}],{")
_STRANGE = [*rb'NaN -Infinity 1e400 -0 0.1e-99 1E+5 2e2 01 1. - 128 "\ud800" {} []'.split(), b"1" * 40]
_INSERTED = [*rb'{ } [ ] , : " \ \u e . - 0 null'.split(), b" ", b"\n", b"\xc3"]
_SEEDS, _FEW, _MANY = 7_000, 1_500, 1_000_000
_IN_A_BATCH = 40


def kind_of(rng: Random, depth: int = 0) -> pa.DataType:
    """A type that both readers read."""
    drawn = rng.random()
    if depth == 0 or (depth < 4 and drawn < 0.2):
        names = rng.sample(_NAMES, rng.randrange(1, 5))
        return pa.struct([pa.field(name, kind_of(rng, depth + 1)) for name in names])
    if depth < 4 and drawn < 0.35:
        return pa.list_(kind_of(rng, depth + 1))
    return rng.choice(_PLAIN)


def written(text: str, rng: Random) -> str:
    """The text in JSON, as one writer or another escapes."""
    plain = orjson.dumps(text).decode()
    if rng.random() < 0.7:
        return plain
    units = text.encode("utf-16-be").hex()
    return '"' + "".join("\\u" + units[at : at + 4] for at in range(0, len(units), 4)) + '"'


def space(rng: Random) -> str:
    return rng.choice(" \n\r\t") * rng.randrange(3) if rng.random() < 0.1 else ""


def among(pieces: list[str], ends: str, rng: Random) -> str:
    """A list or an object."""
    inner = ",".join(space(rng) + piece + space(rng) for piece in pieces)
    return ends[0] + (inner or space(rng)) + ends[1]


def anything(rng: Random, depth: int = 0) -> str:
    """A value that no type is known of."""
    pieces = [anything(rng, depth + 1) for _ in range(rng.randrange(4))] if depth < 4 and rng.random() < 0.3 else None
    if pieces is None:
        number = rng.uniform(-1, 1) * 10.0 ** rng.randrange(-20, 20)
        text = written(rng.choice(_TEXTS), rng)
        return rng.choice((text, "null", "true", "false", repr(number), str(int(number)), "0", "-0", "1e3", "-1.5E-7"))
    if rng.random() < 0.5:
        return among(pieces, "[]", rng)
    return among([f"{written(rng.choice(_TEXTS), rng)}:{each}" for each in pieces], "{}", rng)


def value_of(kind: pa.DataType, rng: Random, depth: int = 0) -> str:
    """A document of that type, or a part of one."""
    if depth and rng.random() < 0.1:
        return "null"
    if pa.types.is_struct(kind):
        pieces = [
            f"{written(each.name, rng)}{space(rng)}:{space(rng)}{value_of(each.type, rng, depth + 1)}"
            for each in kind
            if rng.random() < 0.9
        ]
        pieces += [f"{written('other' + rng.choice(_NAMES), rng)}:{anything(rng)}" for _ in range(rng.randrange(3))]
        if rng.random() < 0.3:
            rng.shuffle(pieces)
        return among(pieces, "{}", rng)
    if pa.types.is_list(kind):
        return among([value_of(kind.value_type, rng, depth + 1) for _ in range(rng.randrange(4))], "[]", rng)
    if pa.types.is_boolean(kind):
        return rng.choice(("true", "false"))
    if kind in _WHOLE or kind in _UNSIGNED:
        bits = _WHOLE.get(kind) or _UNSIGNED[kind]
        least = -(2**bits) if kind in _WHOLE else 0
        return str(rng.choice((least, 0, 7, 2**bits - 1, rng.randrange(least, 2**bits))))
    if pa.types.is_floating(kind):
        most = 30 if kind == pa.float32() else 90
        number = rng.uniform(-10, 10) * 10.0 ** rng.randrange(-most, most)
        return rng.choice((repr(number), f"{number:.{rng.randrange(30)}f}", "0", "-0.0", "3", "1e-45", "16777217"))
    return written(rng.choice(_TEXTS), rng)


def mutated(document: bytes, rng: Random) -> bytes:
    """Spoilt as answers are, or as only JSON can be."""
    drawn = rng.random()
    if drawn < 0.3:
        return spoilt(document, rng)
    spoiling = bytearray(document)
    at = rng.randrange(len(spoiling) + 1)
    if drawn < 0.6:
        # What comes of it is often JSON, and something else than it was.
        spoiling[at : at + 1] = bytes(rng.choices(document + b"019aE", k=rng.randrange(3)))
    else:
        spoiling[at : at + rng.randrange(3)] = rng.choice((*_INSERTED, rng.choice(_STRANGE)))
    return bytes(spoiling)


def bits(found: pa.StructArray) -> tuple[pa.DataType, str]:
    """What tells -0.0 from 0.0, too."""
    found.validate(full=True)
    return found.type, repr(found.to_pylist())


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a reader where the compiled one is not installed."""

    def made(kind: pa.StructType) -> JsonReader:
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "kunicorn_columns", None)
            return JsonReader(kind)

    return made


def alone(reader: Any, values: pa.Array) -> pa.StructArray | None:
    valid, offsets, text = (each or b"" for each in values.buffers())
    found = reader.read(valid, offsets, text, values.offset, len(values))
    return None if found is None else pa.array(found)


def test_what_is_plain_the_compiled_reader_reads_and_pyarrow_reads_the_same(judge: Any) -> None:
    for seed in range(_SEEDS, _SEEDS + _FEW):
        rng = Random(seed)
        kind = kind_of(rng)
        each = [None if rng.random() < 0.1 else value_of(kind, rng).encode() for _ in range(9)]
        values = pa.array(each, pa.large_binary())[rng.randrange(3) : rng.randrange(4, 9)]
        found = alone(compiled().JsonReader.of(kind), values)
        assert found is not None, f"seed {seed}: {kind} {values}"
        expected, misfit = judge(kind).read(values)
        assert misfit is None
        assert bits(found) == bits(expected), f"seed {seed}: {kind} {values}"


def test_of_spoilt_documents_the_same_rows_are_read_and_the_same_one_is_a_misfit(judge: Any) -> None:
    compiled()
    told: Counter[bool] = Counter()
    for seed in range(_SEEDS, _SEEDS + _FEW):
        rng = Random(seed)
        kind = kind_of(rng)
        values = [value_of(kind, rng).encode() for _ in range(6)]
        at = rng.randrange(6)
        values[at] = mutated(values[at], rng)
        (found, misfit), (expected, expected_misfit) = (
            reader.read(pa.array(values, pa.binary())) for reader in (JsonReader(kind), judge(kind))
        )
        assert bits(found) == bits(expected), f"seed {seed}: {kind} {values}"
        assert (misfit and (misfit.row, str(misfit.error))) == (
            expected_misfit and (expected_misfit.row, str(expected_misfit.error))
        ), f"seed {seed}: {kind} {values}"
        told[misfit is None] += 1
    # The tries are worth something: there are both.
    assert min(told.values()) > _FEW // 8, told


def test_plain_documents_are_read_without_pyarrows_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled()
    reader = JsonReader(pa.struct([pa.field("id", pa.int64(), nullable=False)]))
    monkeypatch.delattr("pyarrow.json.read_json")
    found, misfit = reader.read(pa.array([b'{"id": 1, "more": ["\\u00e9"]}', None, b" null", b'{"id": 2}\n']))
    assert (found.to_pylist(), misfit) == ([{"id": 1}, None, None, {"id": 2}], None)


NOT_PLAIN = [
    b"[]",
    b"",
    b'{"id": 1} 2',
    b'{"id": 1, "id": 1}',
    b'{"id": 1, "\\u0069d": 1}',
    b'{"id": 1.0}',
    b'{"id": 9223372036854775808}',
    b'{"more": 1e100}',
    b'{"more": NaN}',
    b'{"more": 01}',
    b'{"more": "\\udc00"}',
    b'{"more": "\\ud800\\u0041"}',
    b'{"more": "\\udc00\\ud800"}',
    b'{"more": "\xff"}',
    b'{"more": "\n"}',
    b'{"more": [1,]}',
    b'{"more": [1}}',
    b'{"more": nul}',
    b'{"more": ' + b"[" * 100 + b"]" * 100 + b"}",
]


@pytest.mark.parametrize("document", NOT_PLAIN)
def test_a_document_that_is_not_plain_leaves_all_of_them_to_pyarrow(document: bytes) -> None:
    reader = compiled().JsonReader.of(pa.struct([("id", pa.int64())]))
    assert alone(reader, pa.array([b'{"id": 1}'], pa.large_binary())) is not None
    assert alone(reader, pa.array([b'{"id": 1}', document], pa.large_binary())) is None


BEFORE = b'{"more": [1, {"a long name": "x"}], "id": 1, "note": null}'
BEHIND = {
    BEFORE: 1,
    b'{"more": ["", {"a long name": -1.5e7}], "id": 2, "note": "\\u00e9"}': 2,
    b'{"more": [true, {"a long name": [1, 2]}], "id": 2, "note": {"id": 3}}': 2,
    b'{"more": [1, {"a long name": "x"}, {"a long name": "x"}], "id": 2, "note": null}': 2,
    b'{"more": [1, {"a long name": "x"}], "id": 2}': 2,
    b'{"more": [1, {"a long name": "x"}], "note": null}': None,
    b'{"more": [1, {"a long name": "x"}], "id": null, "note": null}': None,
    b'{"id": 2}': 2,
    b"{}": None,
}


def test_a_document_that_differs_from_those_before_is_read_as_it_is_alone() -> None:
    reader = compiled().JsonReader.of(pa.struct([("id", pa.int64())]))
    found = alone(reader, pa.array([BEFORE, *BEHIND, *BEHIND], pa.large_binary()))
    assert found is not None
    assert found.field("id").to_pylist() == [1, *BEHIND.values(), *BEHIND.values()]


@pytest.mark.parametrize(
    ("place", "put"),
    [
        (b"[1", b"[01"),
        (b"[1", b"[1e100"),
        (b"[1", b"["),
        (b'"x"', b"x"),
        (b'"x"', b'"x\n"'),
        (b'"x"', b'"\\x"'),
        (b'"x"', b'"\xff"'),
        (b'"x"}]', b'"x]}'),
        (b"null", b"nulll"),
        (b"null", b'null, "id": 1'),
        (b"}", b""),
        (b"null}", b'null} "'),
    ],
)
def test_what_is_like_documents_before_is_checked_as_it_is_alone(place: bytes, put: bytes) -> None:
    reader = compiled().JsonReader.of(pa.struct([("id", pa.int64())]))
    document = put.join(BEFORE.rsplit(place, 1))
    # What is behind it is needed: at the end of all documents nothing is compared with those before.
    assert alone(reader, pa.array([BEFORE, document, BEFORE], pa.large_binary())) is None


@pytest.mark.parametrize("length", range(40))
def test_a_value_that_is_missing_is_missed_whatever_stood_in_its_place(length: int) -> None:
    """Also where a name ends with the bytes that are compared at once."""
    reader = compiled().JsonReader.of(pa.struct([("id", pa.int64())]))
    head = b'{"id": 1, "%s":' % (b"a" * length)
    before = [head + b"[1]}", head + b'"x"}', head + b"{}}", head + b"null}", head + b'[{"a": 1}, 2]}']
    for each in permutations(before, 3):
        assert alone(reader, pa.array([*each, *each], pa.large_binary())) is not None
        for tail in (b"}", b"[}", b"]}", b"[1}", b'["x"}', b"{]}", b"1]}", b"null", b'[{"a": }, 2]}', b'[{"a": 1}, ]}'):
            assert alone(reader, pa.array([*each, head + tail, before[0]], pa.large_binary())) is None


def test_documents_that_never_are_like_those_before_are_all_read() -> None:
    """What is remembered of them is bounded."""
    reader = compiled().JsonReader.of(pa.struct([("id", pa.int64()), ("last", pa.int64())]))
    for form in (b'{"%d": {"%d": 1}, "id": %d, "%d": [], "last": 7}', b'{"id": %d, "%d": [{"%d": %d}], "last": 7}'):
        each = [form % (n, n, n, n) for n in range(3_000)]
        for kinds in (2, 12, 200, 3_000):
            some = [each[n % kinds] for n in range(3_000)]
            found = alone(reader, pa.array(some, pa.large_binary()))
            assert found is not None
            assert found.to_pylist() == [{"id": n % kinds, "last": 7} for n in range(3_000)]
            # What is not remembered has no place in what is.
            for at in range(1, len(each[0])):
                assert alone(reader, pa.array([*some[:300], each[0][at:], each[0]], pa.large_binary())) is None


@pytest.mark.parametrize(
    "kind",
    [pa.timestamp("s"), pa.decimal128(5), pa.binary(), pa.float16(), pa.null(), pa.dictionary(pa.int32(), pa.string())],
)
def test_a_type_that_is_written_in_a_form_of_its_own_is_left_to_pyarrow(kind: pa.DataType) -> None:
    reader = compiled().JsonReader
    assert reader.of(pa.struct([("a", kind)])) is None
    assert reader.of(pa.struct([("a", pa.list_(kind))])) is None
    assert reader.of(kind) is None


def test_buffers_that_are_no_columns_are_not_read_beyond_their_ends() -> None:
    reader = compiled().JsonReader.of(pa.struct([("id", pa.int64())]))
    rng = Random(_SEEDS)
    text = b'{"id": 1}' * 4
    for _ in range(_FEW):
        ends = [rng.choice((0, 9, 18, 36, 37, -1, 2**63 - 1)) for _ in range(rng.randrange(6))]
        offsets = b"".join(end.to_bytes(8, "little", signed=True) for end in ends)
        first, rows = rng.choice((0, 1, 7, sys.maxsize)), rng.choice((0, 1, 3, sys.maxsize))
        found = reader.read(rng.choice((b"", b"\5")), offsets, text, first, rows)
        assert found is None or len(pa.array(found)) == rows <= len(ends)


def documents(kind: pa.StructType, rng: Random) -> Iterator[tuple[bytes, bytes]]:
    """One that is plain, and that spoilt in one way or two, without an end."""
    while True:
        plain = value_of(kind, rng).encode()
        once = [mutated(plain, rng) for _ in range(4)]
        yield from ((plain, each) for each in (*once, mutated(once[0], rng)))


def read_among(reader: Any, plain: bytes, document: bytes) -> pa.StructArray | None:
    """The document, read between two that are like it, and alone: there is no difference."""
    found = alone(reader, pa.array([document], pa.large_binary()))
    three = alone(reader, pa.array([plain, document, plain], pa.large_binary()))
    assert (found and bits(found)) == (three and bits(three[1:2])), (plain, document)
    return found


def test_a_spoilt_document_among_plain_ones_is_read_as_it_is_alone() -> None:
    read = 0
    for seed in range(_SEEDS, _SEEDS + _FEW):
        rng = Random(seed)
        kind = kind_of(rng)
        reader = compiled().JsonReader.of(kind)
        read += sum(read_among(reader, *each) is not None for each in islice(documents(kind, rng), 5))
    assert _FEW // 4 < read < 5 * _FEW


@pytest.mark.long
def test_nothing_of_a_million_spoilt_documents_is_read_that_pyarrow_refuses_or_reads_differently(judge: Any) -> None:
    tried, read = 0, 0
    for seed in range(_SEEDS + _FEW, _SEEDS + _FEW + _MANY // _IN_A_BATCH):
        rng = Random(seed)
        kind = kind_of(rng)
        reader = compiled().JsonReader.of(kind)
        tries = list(islice(documents(kind, rng), _IN_A_BATCH))
        told = [(each, found) for plain, each in tries if (found := read_among(reader, plain, each)) is not None]
        tried, read = tried + len(tries), read + len(told)
        if told:
            expected, misfit = judge(kind).read(pa.array([each for each, _ in told], pa.large_binary()))
            assert misfit is None, f"seed {seed}: {kind} {told[misfit.row][0]}"
            assert bits(pa.concat_arrays([found for _, found in told])) == bits(expected), f"seed {seed}"
    assert tried == _MANY
    assert tried // 20 < read < tried
