"""The compiled decoder on responses spoilt at random: it neither ends the process nor raises what it does not promise,
keeps within its bound, and makes of each what the reference makes of it.

`python -m tests.contract.columns.test_spoilt_responses --runs 1000000` is the long run; `--seed` repeats one response.
It mutates and does not follow coverage: a fuzzer that does needs a nightly toolchain and the crate without Python.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from kunicorn.columns import reference
from kunicorn.columns.decoding import Decoder, Part, Response
from tests.compiled import compiled
from tests.fakes.spoilt import TOPICS, VERSIONS, spoilt_response

_LIMIT = 4000
_FIRST_SEED = 20_000
_FEW, _MANY = 1_000, 10_000
_SLICE = 10_000
_PACKED = "does not unpack"
"""Where other bytes than a producer's are packed, two libraries may differ in what they make of them."""


def _placed(decoder_class: type[Decoder], read_committed: bool) -> Decoder:
    decoder = decoder_class(read_committed=read_committed, max_unpacked=_LIMIT)
    for topic in TOPICS:
        for number in (0, 1):
            decoder.place(topic, number, topic.decode(), number)
    return decoder


def _facts(part: Part) -> dict[str, Any]:
    names = reference.Part.__slots__
    facts = {name: getattr(part, name) for name in names}
    # Which of two things is found wrong first is not promised.
    return facts | {"damage": bool(part.damage)}


def _said(decoder: Decoder, body: bytes, version: int) -> tuple[list[Response], str]:
    """Every response up to the last cut; or that the frame is refused."""
    try:
        found = [decoder.decode(body, version)]
        while more := found[-1].more:
            found.append(decoder.decode(body, version, more))
    except ValueError as refused:
        return [], str(refused)
    return found, ""


def difference(seed: int, compiled: type[Decoder]) -> tuple[str, str]:
    """What the two decoders make of the response of that seed differently, empty where nothing; and what came of it."""
    rng = Random(seed)
    version = rng.choice(VERSIONS)
    body = spoilt_response(version, rng)
    read_committed = rng.random() < 0.5
    judged, ours = (_said(_placed(each, read_committed), body, version) for each in (reference.Decoder, compiled))
    if judged[1] or ours[1]:
        return ("" if judged[1] == ours[1] else f"refused: {judged[1]!r}, {ours[1]!r}"), "refused"
    kind = "whole"
    for expected, found in zip(judged[0], ours[0], strict=False):
        for one, other in zip(expected.partitions, found.partitions, strict=False):
            if one.damage or other.damage:
                kind = "damaged"
            if _PACKED in one.damage + other.damage and one.damage_offset != other.damage_offset:
                return "", f"packed: {one.damage or 'whole'} by the reference, {other.damage or 'whole'} compiled"
        told = [_facts(part) for part in expected.partitions], [_facts(part) for part in found.partitions]
        if told[0] != told[1]:
            return f"{told[0]}\n{told[1]}", kind
        rows = pa.record_batch(found.rows)
        rows.validate(full=True)
        if not rows.equals(pa.record_batch(expected.rows)):
            return f"{expected.rows}\n{rows.to_pylist()}", kind
        heads = [
            (each.throttle_ms, each.error, each.session_id, list(each.nodes), each.more) for each in (expected, found)
        ]
        if heads[0] != heads[1]:
            return f"{heads}", kind
    if len(judged[0]) != len(ours[0]):
        return f"{len(judged[0])} and {len(ours[0])} cuts", kind
    return "", kind


def _agree(seeds: range) -> None:
    decoder = compiled().Decoder
    kinds: Counter[str] = Counter()
    for seed in seeds:
        differs, kind = difference(seed, decoder)
        assert not differs, f"--seed {seed}: {differs}"
        kinds[kind] += 1
    # The tries are worth something: each of the three kinds is there.
    assert min(kinds["whole"], kinds["damaged"], kinds["refused"]) > len(seeds) // 16, kinds


def test_the_compiled_decoder_makes_of_spoilt_responses_what_the_reference_makes() -> None:
    _agree(range(_FIRST_SEED, _FIRST_SEED + _FEW))


@pytest.mark.long
def test_the_compiled_decoder_makes_of_many_spoilt_responses_what_the_reference_makes() -> None:
    _agree(range(_FIRST_SEED + _FEW, _FIRST_SEED + _FEW + _MANY))


def _tried(seeds: range) -> tuple[Counter[str], list[str]]:
    """How often each thing came of a response, and what differs, told with its seed."""
    import kunicorn_columns

    compiled: Any = kunicorn_columns.Decoder
    kinds: Counter[str] = Counter()
    differences = []
    for seed in seeds:
        differs, kind = difference(seed, compiled)
        kinds[kind.partition(":")[0]] += 1
        if differs:
            differences.append(f"--seed {seed}: {differs}")
    return kinds, differences


def _main() -> int:
    """Each slice of seeds has a process of its own: one that is ended by its decoder fails the run, and what the
    reference's codecs keep of what they refuse does not add up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed, where a run was cut off")
    parser.add_argument("--seed", type=int, help="only this one")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.runs) if given.seed is None else range(given.seed, given.seed + 1)
    kinds: Counter[str] = Counter()
    failed = 0
    slices = [seeds[start : start + _SLICE] for start in range(0, len(seeds), _SLICE)]
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for these, (found, differences) in zip(slices, pool.map(_tried, slices), strict=True):
            kinds += found
            failed += len(differences)
            print(*differences, f"up to seed {these[-1]}: {dict(kinds)}, {failed} differ", sep="\n", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(_main())
