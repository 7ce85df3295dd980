"""The table from error to reaction is total, and says what the reference clients do."""

from __future__ import annotations

import pytest

from kunicorn.group.reactions import Api, Reaction, reaction


@pytest.mark.parametrize("api", Api)
def test_the_code_of_no_error_proceeds_and_no_other_code_does(api: Api) -> None:
    assert [code for code in (*range(-1, 150), 999, 32_767) if reaction(api, code) is Reaction.PROCEED] == [0]


@pytest.mark.parametrize(
    ("api", "code", "expected"),
    [
        (Api.JOIN, 14, Reaction.RETRY),
        (Api.JOIN, 15, Reaction.REDISCOVER),
        (Api.JOIN, 16, Reaction.REDISCOVER),
        (Api.JOIN, 22, Reaction.RESET_GENERATION),
        (Api.JOIN, 25, Reaction.FORGET_MEMBER),
        (Api.JOIN, 79, Reaction.ADOPT_MEMBER_ID),
        (Api.JOIN, 23, Reaction.FAIL),
        (Api.JOIN, 81, Reaction.FAIL),
        (Api.SYNC, 27, Reaction.REJOIN),
        (Api.SYNC, 22, Reaction.RESET_GENERATION),
        (Api.SYNC, -1, Reaction.REJOIN_LATER),
        (Api.SYNC, 999, Reaction.REJOIN_LATER),
        (Api.HEARTBEAT, 27, Reaction.REJOIN),
        (Api.HEARTBEAT, 30, Reaction.FAIL),
        (Api.HEARTBEAT, 69, Reaction.FORGET_MEMBER),
        (Api.SYNC, 69, Reaction.FORGET_MEMBER),
        (Api.COMMIT, 69, Reaction.FORGET_MEMBER),
        (Api.HEARTBEAT, 999, Reaction.RETRY),
        (Api.COMMIT, 7, Reaction.REDISCOVER),
        (Api.COMMIT, 3, Reaction.RETRY),
        (Api.COMMIT, 100, Reaction.RETRY),
        (Api.COMMIT, 29, Reaction.GIVE_UP),
        (Api.OFFSET_FETCH, 88, Reaction.RETRY),
        (Api.FIND_COORDINATOR, 30, Reaction.FAIL),
        (Api.FIND_COORDINATOR, 15, Reaction.RETRY),
    ],
)
@pytest.mark.scenario(
    "test_failed_group_join", "test_failed_sync_group", "test_commit_failed_scenarios", "test_coordinator__do_heartbeat"
)
def test_the_reaction_is_that_of_the_java_client(api: Api, code: int, expected: Reaction) -> None:
    assert reaction(api, code) is expected


@pytest.mark.scenario("testCommitOffsetRebalanceInProgress")
def test_a_commit_that_meets_a_rebalance_asks_by_heartbeat_where_the_java_client_joins_at_once() -> None:
    assert reaction(Api.COMMIT, 27) is Reaction.BEAT
