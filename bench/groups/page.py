"""The section of docs/benchmarks.md on large groups, made of docs/large-groups.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.groups.cases import (
    ASSIGNMENT_INTERVAL,
    ASSIGNORS,
    CASES,
    GROWN,
    INITIAL_DELAY,
    LARGE,
    RULES,
    SAMPLED,
    SIZES,
    STARTING,
    Row,
)
from bench.pages import PAGE, paragraph, write_section
from kunicorn.kafka.versions import Api

TITLE = "Large groups, modelled"
FIGURES = PAGE.with_name("large-groups.json")
RECORD_LIMIT = 1_048_588
"""Bytes: `message.max.bytes` of brokers as shipped, which holds for the log of groups, too."""

NAMES = {
    "join": "all join",
    "one": "one more",
    "ten": "ten more at once",
    "grown": f"{GROWN} % more partitions",
    "rolling": "rolling restart",
    "rolling-static": "rolling restart, static",
}
COSTS: Sequence[tuple[str, Callable[[Row], str]]] = (
    ("generations", lambda row: f"{row.generations:,}"),
    ("messages", lambda row: f"{sum(row.messages.values()):,}"),
    ("MB", lambda row: f"{(row.sent + row.received) / 1e6:.2f}"),
    ("leader CPU s", lambda row: f"{row.leader_cpu:.2f}" if row.group_record else "–"),
    ("longest plan s", lambda row: f"{row.plan_cpu:.2f}" if row.group_record else "–"),
    ("follower CPU ms", lambda row: f"{row.follower_cpu * 1000:.1f}"),
    ("settled after s", lambda row: f"{row.seconds:,.1f}"),
    ("moved", lambda row: f"{row.moved:,}"),
    ("without owner, partition-s", lambda row: f"{row.unowned:,.0f}"),
)
KINDS = (
    Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT, Api.LEAVE_GROUP, Api.CONSUMER_GROUP_HEARTBEAT, Api.OFFSET_COMMIT
)  # fmt: skip
MESSAGES: Sequence[tuple[str, Callable[[Row], str]]] = (
    *((api.title, lambda row, api=api: f"{row.messages.get(api.title, 0):,}") for api in KINDS),
    ("sent MB", lambda row: f"{row.sent / 1e6:.2f}"),
    ("received MB", lambda row: f"{row.received / 1e6:.2f}"),
    ("longest frame kB", lambda row: f"{row.largest_frame / 1000:.0f}"),
    ("group's record kB", lambda row: f"{row.group_record / 1000:.0f}" if row.group_record else "–"),
)


def read(figures: Path = FIGURES) -> list[Row]:
    """All that was measured, in the order of the table."""
    kept = json.loads(figures.read_text()) if figures.exists() else []
    return sorted((Row(**each) for each in kept), key=lambda row: row.key)


def keep(row: Row, figures: Path = FIGURES, page: Path = PAGE) -> None:
    """Put it in place of the one before of its kind, and write the section."""
    rows = [each for each in read(figures) if each.key != row.key] + [row]
    rows.sort(key=lambda each: each.key)
    figures.write_text("[\n" + ",\n".join(json.dumps(asdict(each)) for each in rows) + "\n]\n")
    write(figures, page)


def write(figures: Path = FIGURES, page: Path = PAGE) -> None:
    """Write the section anew."""
    write_section(TITLE, section(read(figures)), page)


def section(rows: Sequence[Row]) -> str:
    """The section's text."""
    (few, of_few), (many, of_many) = SIZES["rolling"], LARGE
    paragraphs = (
        f"`make bench-groups`: a group of {many:,} members with {of_many:,} partitions of one topic, and one of "
        f"{few:,} with {of_few:,} that is restarted member by member. No broker: the coordinator is the model of "
        "`tests/fakes`, which keeps Kafka's rules, and each of our members is the real state machine and the real "
        "assignor. *java* are members that decide as the Java client of Kafka 4.0 does (`tests/fakes/java_member.py` "
        "and `java_assignor.py` name the sources). Every event is held against the group's invariants: no partition "
        "has two owners, none is given away before it is let go of, none is left over at the end.",
        _table(rows, COSTS),
        "Settled: every partition has an owner, every member its place, and the coordinator has nothing left to tell. "
        "Time is the model's: a message takes up to 4 ms, records in hand 100 ms, a commit 4 ms, a restart "
        f"{STARTING:g} s, and the leader's plan the processor time that it takes here. The brokers' settings are those "
        f"that Kafka 4.4 ships: a new group waits {INITIAL_DELAY:g} s for more members as long as more come, a new "
        f"assignment of the consumer protocol {ASSIGNMENT_INTERVAL:g} s after the one before. The next member of a "
        "rolling restart goes when the group is settled; its row has all restarts together. More partitions count "
        "from when the leader's metadata tell of them.",
        "Processor time is Python's on this machine, of *java*'s decisions, too: compare rows, not with a JVM. A "
        f"follower's is the mean of {SAMPLED} members. Heartbeats until the group is settled are in. Ours come every "
        "half second after a change, the Java client's every three, or five with the consumer protocol: ours hear of a "
        "rebalance sooner, and say more.",
        "A restart of a dynamic member is two changes of its group: it leaves, and comes back. Classic members of ours "
        "are through with the first one by then and have a generation for each; the Java client's, which hear of it in "
        "their next heartbeat, are still joining, and have one for both.",
        _table(rows, MESSAGES),
        f"Messages are requests; each has one answer. The frames of {SAMPLED} members, of every leader, and the first "
        "of each shape are real; the others count by their shape. Not in it: offsets that are fetched, commits by the "
        "timer, records.",
        _on_records(rows),
    )
    return "\n\n".join(each if each.startswith("|") else paragraph(each) for each in paragraphs)


def _on_records(rows: Sequence[Row]) -> str:
    largest = max(rows, key=lambda row: row.group_record, default=None)
    if largest is None:
        return ""
    share = largest.group_record / RECORD_LIMIT
    return (
        "The coordinator of a classic group writes all subscriptions and assignments as one record with each "
        f"generation, and it refuses what is above `message.max.bytes` ({RECORD_LIMIT:,} as shipped). The largest "
        f"here has {largest.group_record:,} bytes, {share:.0%} of that ({NAMES[largest.case]}, {largest.assignor}, "
        f"{largest.rules}): names of topics, ids of members and four bytes for each partition, twice where members "
        "say what they own. With the consumer protocol each member has a record of its own."
    )


def _table(rows: Iterable[Row], columns: Sequence[tuple[str, Callable[[Row], str]]]) -> str:
    by_key = {row.key: row for row in rows}
    lines = [["", "assignor", "rules", *(name for name, _ in columns)], ["---"] * 3 + ["--:"] * len(columns)]
    for number, case in enumerate(CASES):
        for place, assignor in enumerate(ASSIGNORS):
            for order, rules in enumerate(RULES):
                row = by_key.get((number, place, order))
                cells = (
                    [show(row) for _, show in columns] if row is not None else ["not run"] + [""] * (len(columns) - 1)
                )
                lines.append([NAMES[case], assignor, rules, *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
