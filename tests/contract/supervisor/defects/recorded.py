"""What finding them took, as it was measured last, and how the page shows it. Pure, but for the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.contract.worker.defects import recorded

HERE = Path(__file__).parent
DEFECTS: Mapping[str, str] = {
    "history_of_a_new_group": "a new group under “latest” handles old records of partitions that are chosen for later",
    "move_while_joining": "a coordinator that moves before a generation is in the log costs members all they have",
    "refused_commit_counts": "a commit that is refused counts as committed",
    "fresh_for_ever": "a partition of a topic that was created anew begins at the log's start after each death, too",
    "given_up_at_once": "a rebalance gives up what it has to commit where the brokers would take it",
    "given_up_while_away": "a rebalance gives up what it has to commit before a dead coordinator has a successor",
    "one_broker_believed": "a topic id that one broker alone had back is believed until the metadata is refreshed",
    "given_while_one_was_behind": "a partition that is given while a broker that is behind is believed stands still",
    "lease_before_the_news": "a worker may handle again before it has read what its member has lost",
    "stuck_and_given_away": "a partition is given away while a worker that outlives SIGKILL has it in hand",
}
"""By the patch that puts it back."""

_HEAD = """
## Stories of a group

Members as the service puts them together (membership, look-ups, commits, hand-over, sharing out) by a clock that is
turned, beside two brokers and played workers that do what chance says: requests, their answers, or single partitions in
them fail; the coordinator moves or dies; members come with skew, leave, crash; workers die, are stuck, outlive SIGKILL;
topics grow or are created anew, logs are cut off, rights taken away; a person pauses and resumes. In a fifth of them
workers have several records of a partition in hand, some cannot be handled, a person puts partitions elsewhere and
replaces code, partitions move from worker to worker, workers hand over to successors, and members come again under
names of their own. In another fifth they do so, too, a member is not heard of until its session is over and then at
once, and workers get to what they are told seconds later, as on a busy machine, while they see their lease in shared
memory. In another one the coordinator is away before a rebalance, or in the middle of one, for longer than a commit may
take, and a rebalance in order repeats nothing for that. The last fifth has, besides, topics that grow and are created
anew in groups with the consumer protocol, too, and brokers that hear of it up to 12 seconds late
([tests/contract/supervisor](../tests/contract/supervisor/story.py)). All the while no record is handled twice without a
cause, none by two workers, nothing is committed that is not finished, or taken back, and nobody loses a partition while
its membership is certain; at the end each partition has one owner, and every record is handled and committed. A
hand-over may leave something uncommitted where the brokers have taken no commit of that partition for as long as one is
tried, or have refused the member; whoever stops may, too. Every run of the tests tells {each_run} stories of each kind,
`make conformance-long` {long:,}.

Defects put back, as above, with up to {stories:,} stories a seed; measured by
`python -m tests.contract.supervisor.defects --write`.

"""
EACH_RUN, LONG = 30, 15_000


def section() -> str:
    """The page's part about them."""
    measured = recorded.read(HERE / "recorded.json")
    if measured is None:
        return ""
    return _HEAD.format(stories=measured.stories, each_run=EACH_RUN, long=LONG) + recorded.table(measured, DEFECTS)
