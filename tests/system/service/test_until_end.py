"""`kunicorn run --until-end`: a group's job that handles what there is and exits, while producers go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.system.producing import Flow, end_offsets, produce
from tests.system.scene import Scene

SceneMaker = Callable[..., Scene]


def handled(stage: Scene, partitions: int) -> list[list[int]]:
    """Offsets by partition, in the order in which they were handled."""
    return [stage.handled(partition) for partition in range(partitions)]


def test_a_job_handles_what_there_was_at_its_start_and_the_next_one_the_rest(scene: SceneMaker) -> None:
    stage = scene(3, handler="marked:handle")
    bootstrap, topic = stage.kafka.bootstrap, stage.topic
    produce(bootstrap, topic, 500)
    before = {tp.partition: end for tp, end in end_offsets(bootstrap, topic, 3).items()}
    with Flow(bootstrap, topic, rate=200):
        job = stage.members.start(options=["--until-end"])
        assert job.exit_code() == 0
    committed = stage.committed()
    assert all(committed[partition] >= before[partition] for partition in range(3))
    # Nothing behind an end was handled, and nothing that was not handled is committed (invariant 1).
    assert handled(stage, 3) == [list(range(committed[partition])) for partition in range(3)]
    assert "everything that was assigned is handled up to its end" in job.output()

    again = stage.members.start(options=["--until-end", "--for", "1h"])
    assert again.exit_code() == 0
    ends = {tp.partition: end for tp, end in end_offsets(bootstrap, topic, 3).items()}
    assert stage.committed() == ends
    assert handled(stage, 3) == [list(range(ends[partition])) for partition in range(3)]
    assert stage.judge().faults() == {}


@pytest.mark.long
def test_jobs_side_by_side_share_the_work_and_all_end(scene: SceneMaker) -> None:
    stage = scene(4, handler="marked:handle")
    produce(stage.kafka.bootstrap, stage.topic, 2000)
    jobs = [stage.members.start(options=["--until-end"]) for _ in range(3)]
    assert [job.exit_code(within=150) for job in jobs] == [0, 0, 0]
    assert stage.judge().faults() == {}
