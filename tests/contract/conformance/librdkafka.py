"""Scenarios of librdkafka's tests, by the number of the program and the name of the case."""

from __future__ import annotations

from tests.contract.conformance.scenario import Scenario

S = Scenario
_HANDLERS_ONLY = "handlers are given records; there is no assign() that an application could call at the wrong time"
_NO_CALLBACKS = "nobody can ask to be told of rebalances, so there is no second way to let go of partitions"

COOPERATIVE = (
    S("0113 a_assign_tests", "whole clients", "assign() in every order", _HANDLERS_ONLY),
    S("0113 b_subscribe_with_cb", "whole clients", "a second member takes half, one partition at a time moves"),
    S("0113 c_subscribe_no_cb", "whole clients", "members that come and go cost the others no partition that stays"),
    S("0113 d_change_subscription_add_topic", "whole clients", "a topic more is taken up beside the others"),
    S("0113 e_change_subscription_remove_topic", "whole clients", "a topic less leaves the others alone"),
    S(
        "0113 f_assign_call_cooperative",
        "whole clients",
        "assign() in a cooperative group",
        _HANDLERS_ONLY,
    ),
    S(
        "0113 g_incremental_assign_call_eager",
        "whole clients",
        "incremental_assign() in an eager one",
        _HANDLERS_ONLY,
    ),
    S("0113 h_delete_topic", "whole clients", "a deleted topic is let go of"),
    S("0113 i_delete_topic_2", "whole clients", "the partitions of the other topics go on"),
    S("0113 j_delete_topic_no_rb_callback", "whole clients", "so they do when nobody asks to be told", _NO_CALLBACKS),
    S("0113 k_add_partition", "whole clients", "partitions added to a topic are taken up"),
    S("0113 l_unsubscribe", "whole clients", "a member that leaves hands everything over"),
    S("0113 m_unsubscribe_2", "whole clients", "the last member that leaves has committed everything"),
    S("0113 n_wildcard", "whole clients", "topics that match a pattern later are taken up"),
    S("0113 o_java_interop", "whole clients", "a Java consumer shares the group"),
    S("0113 p_lost_partitions_heartbeat_illegal_generation", "lost partitions", "ILLEGAL_GENERATION on a heartbeat"),
    S("0113 q_lost_partitions_illegal_generation", "lost partitions", "ILLEGAL_GENERATION on JoinGroup and SyncGroup"),
    S("0113 r_lost_partitions_commit_illegal_generation", "lost partitions", "ILLEGAL_GENERATION on a commit"),
    S(
        "0113 s_subscribe_when_rebalancing",
        "whole clients",
        "topics that change amid a rebalance count",
    ),
    S(
        "0113 t_max_poll_interval_exceeded",
        "whole clients",
        "a slow record costs its worker, not the group",
    ),
    S("0113 u_multiple_subscription_changes", "whole clients", "changes in a row are joined for, the last one counts"),
)

OTHERS = (
    S("0033 regex_subscribe", "whole clients", "patterns are matched from the beginning, others' topics left alone"),
    S("0045 subscribe_update", "leader and metadata", "replicas, partitions and topics that change ask for a new plan"),
    S("0089 max_poll_interval", "whole clients", "a handler of several session timeouts costs no rebalance"),
    S("0102 do_test_fenced_member_classic", "whole clients", "of two processes with one instance id one is fenced"),
    S("0102 do_test_fenced_member_consumer", "whole clients", "so it is with the consumer protocol"),
    S("0106 do_test_session_timeout", "whole clients", "past its session a member starts nothing"),
    S("0106 do_test_commit_on_lost", "lost partitions", "what is lost is not committed"),
    S("0117 do_test_joingroup_coordinator_load_in_progress", "join and sync", "a loading coordinator is asked again"),
    S(
        "0117 do_test_offset_commit_error_during_rebalance",
        "commit",
        "what a rebalance refuses is committed after it",
    ),
    S("0118 commit_rebalance", "commit", "what is handled before a rebalance is committed before the join"),
    S("0120 asymmetric_subscription", "assignors and subscriptions", "members with unequal topics get their own only"),
    S("0132 strategy_ordering", "join and sync", "assignors are offered in order of preference"),
    S("0139 offset_validation", "commit", "a truncated log is gone on with where the last epoch seen ends (KIP-320)"),
    S(
        "0143 test_heartbeat_find_coordinator",
        "heartbeat",
        "NOT_COORDINATOR leads to a look-up",
    ),
    S("0146 metadata", "connections and look-ups", "metadata that goes backwards or is empty is not adopted"),
    S("0147 fenced", "consumer protocol (KIP-848)", "FENCED_MEMBER_EPOCH and UNKNOWN_MEMBER_ID: lost, joined anew"),
    S("0147 fatal", "consumer protocol (KIP-848)", "errors that only a person can cure end the service, with a remedy"),
    S("0147 retriable", "consumer protocol (KIP-848)", "loading and moved coordinators cost nothing"),
    S("0147 unknown topic id", "consumer protocol (KIP-848)", "partitions of topics without a name wait for it"),
    S("0148 offset_fetch_commit_error", "commit", "an error of the group is not read as no offsets"),
    S("0151 purge_brokers", "connections and look-ups", "nodes that left are not asked any more"),
    S("0152 rebootstrap", "connections and look-ups", "the bootstrap servers lead back (KIP-899)"),
)

SCENARIOS = (*COOPERATIVE, *OTHERS)
