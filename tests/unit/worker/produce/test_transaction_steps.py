"""What follows which end of a transaction's step, and what the client is told of the group."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from confluent_kafka import KafkaError

from kunicorn.ipc.messages import CommitAs, CommitOver, CommitWanted, FromWorker
from kunicorn.worker.produce.outbox import BEHIND, STEPS, Result, Step, result_of
from kunicorn.worker.produce.transactions import GroupMetadata, metadata_bytes

OVER = {Step.DONE, Step.FENCED}


def walked(results: Iterable[Result]) -> list[Step]:
    """The steps of one batch whose steps end like this."""
    steps = [Step.ASK]
    for result in results:
        steps.append(STEPS[steps[-1], result])
    return steps


def test_a_batch_without_trouble_asks_begins_produces_sends_its_offsets_and_commits() -> None:
    every = [Step.ASK, Step.BEGIN, Step.PRODUCE, Step.FLUSH, Step.OFFSETS, Step.COMMIT, Step.DONE]
    assert walked([Result.OK] * 6) == every


def test_an_undecided_commit_is_asked_about_again_and_never_aborted() -> None:
    assert STEPS[Step.COMMIT, Result.AGAIN] is Step.COMMIT


@pytest.mark.parametrize("step", [Step.BEGIN, Step.PRODUCE, Step.FLUSH, Step.OFFSETS, Step.COMMIT])
def test_an_aborted_batch_waits_for_those_before_it_and_asks_anew_as_whom_to_commit(step: Step) -> None:
    assert STEPS[step, Result.ABORTABLE] is Step.ABORT
    assert STEPS[Step.ABORT, Result.OK] is Step.REST
    assert BEHIND[Step.REST] is Step.DONE
    assert STEPS[Step.REST, Result.OK] is Step.ASK


@pytest.mark.parametrize("step", [Step.BEGIN, Step.PRODUCE, Step.FLUSH, Step.OFFSETS, Step.COMMIT, Step.ABORT])
def test_a_fatal_error_is_the_end_wherever_it_comes(step: Step) -> None:
    assert STEPS[step, Result.FATAL] is Step.FENCED


def test_offsets_are_sent_only_behind_an_answer_and_committed_only_behind_offsets() -> None:
    before = {to: {of for (of, _), each in STEPS.items() if each is to and of is not to} for to in Step}
    assert before[Step.BEGIN] == {Step.ASK}
    assert before[Step.OFFSETS] == {Step.FLUSH}
    assert before[Step.COMMIT] == {Step.OFFSETS}
    assert before[Step.DONE] == {Step.EMPTY, Step.COMMIT}


def test_every_step_that_is_reached_has_an_end() -> None:
    reached = set(STEPS.values()) - OVER
    assert reached <= {of for of, _ in STEPS}
    assert not {of for of, _ in STEPS} & OVER


def test_errors_are_sorted_by_what_the_client_says_of_them() -> None:
    stale = KafkaError(KafkaError.ILLEGAL_GENERATION, "old", False, False, True)
    slow = KafkaError(KafkaError._TIMED_OUT, "slow", False, True, False)
    fenced = KafkaError(KafkaError._FENCED, "fenced", True, False, False)
    told = [result_of(error) for error in (stale, slow, fenced)]
    assert told == [Result.ABORTABLE, Result.AGAIN, Result.FATAL]


@pytest.mark.parametrize(
    ("instance_id", "end"), [(None, b"\x01"), ("pod-0", b"\x00pod-0\x00")], ids=["dynamic", "static"]
)
def test_the_groups_metadata_is_written_as_librdkafka_reads_it(instance_id: str | None, end: bytes) -> None:
    written = metadata_bytes("orders", CommitAs(1, 258, "member-1", instance_id))
    assert written == b"CGMDv2:\x02\x01\x00\x00orders\x00member-1\x00" + end


def test_each_question_gets_its_own_answer_whichever_comes_first() -> None:
    group_metadata, told = GroupMetadata(), list[FromWorker]()
    numbers = [group_metadata.request(told.append) for _ in range(2)]
    assert told == [CommitWanted(number) for number in numbers]
    for number in reversed(numbers):
        group_metadata.answered(CommitAs(number, 10 + number, "m", None))
    answers = [group_metadata.wait(number, 1.0) for number in numbers]
    assert [answer and answer.generation for answer in answers] == [11, 12]


def test_an_answer_to_a_question_that_is_over_is_dropped() -> None:
    group_metadata, told = GroupMetadata(), list[FromWorker]()
    old = group_metadata.request(told.append)
    group_metadata.release(old, told.append)
    new = group_metadata.request(told.append)
    group_metadata.answered(CommitAs(old, 7, "old", None))
    assert group_metadata.wait(new, 0.01) is None
    assert told == [CommitWanted(old), CommitOver(old), CommitWanted(new)]
