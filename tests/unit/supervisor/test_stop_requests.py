"""What each request to stop comes to: in order the first time, at once the second."""

from __future__ import annotations

from unittest import mock

import pytest

from kunicorn.errors import ConfigError, ExitCode, FatalGroupError
from kunicorn.settings import GroupSettings
from kunicorn.supervisor.membership.source import AssignmentSource, StopMessages
from kunicorn.supervisor.stop import Stopping, Watchdog

GROUP = GroupSettings(id="g", topics=("orders",))


class Told:
    """A source that writes down what it is told."""

    def __init__(self) -> None:
        self.source = mock.Mock(
            spec=AssignmentSource, over=False, stop_messages=StopMessages("leaving", "clean", "unclean", "overdue")
        )
        self.ends = 0
        self.watchdog = mock.Mock(spec=Watchdog)
        self.stopping = Stopping(self.source, GROUP, self._end, self.watchdog)

    def _end(self) -> None:
        self.ends += 1

    @classmethod
    def serving(cls, *requests: str) -> Told:
        """Of a service that serves, and got these requests."""
        told = cls()
        told.stopping.begin_serving()
        for request in requests:
            told.stopping.request(request)
        return told


def test_before_anything_is_begun_a_stop_is_the_end() -> None:
    told = Told()
    told.stopping.request("SIGTERM")
    assert told.stopping.begun
    assert told.ends == 1
    told.source.leave.assert_not_called()


async def test_a_service_that_serves_leaves_in_order_and_waits() -> None:
    told = Told.serving("SIGTERM")
    assert told.source.leave.call_args.args[0].startswith("SIGTERM at ")
    assert (told.ends, told.stopping.hurried) == (0, False)


async def test_a_second_signal_stops_at_once_but_a_second_request_to_drain_does_not() -> None:
    told = Told.serving("SIGTERM")
    assert not told.stopping.drain()
    assert (told.ends, told.stopping.hurried) == (0, False)
    told.stopping.request("SIGINT")
    told.source.stop_at_once.assert_called_once_with()
    assert (told.ends, told.stopping.hurried) == (1, True)


@pytest.mark.parametrize("begun_by", ["a person", "a job's end", "an error"])
async def test_the_first_signal_behind_a_stop_that_no_signal_began_cuts_nothing_off(begun_by: str) -> None:
    told = Told.serving()
    if begun_by == "a person":
        told.stopping.drain()
    elif begun_by == "a job's end":
        told.stopping.finish("all is handled")
    else:
        told.stopping.wind_up(ConfigError("wrong"), in_hand=True)
    told.stopping.request("SIGTERM")
    told.source.leave.assert_called_once()
    assert (told.ends, told.stopping.hurried) == (0, False)
    told.stopping.request("SIGTERM")
    told.watchdog.bite.assert_not_called()
    assert (told.ends, told.stopping.hurried) == (1, True)


async def test_nothing_is_hurried_once_it_is_over() -> None:
    told = Told.serving("SIGTERM")
    told.source.over = True
    told.stopping.request("SIGTERM")
    told.source.stop_at_once.assert_not_called()
    assert not told.stopping.hurried


async def test_a_third_signal_ends_the_process() -> None:
    told = Told.serving("SIGTERM")
    told.stopping.request("SIGTERM")
    told.watchdog.bite.assert_not_called()
    told.stopping.request("SIGTERM")
    assert told.watchdog.bite.call_args.args[1] == ExitCode.NOT_ALL_COMMITTED


async def test_whatever_is_begun_the_watchdog_waits_no_longer_than_its_budget_and_some_seconds() -> None:
    told = Told.serving("SIGTERM")
    budget = (GROUP.drain_timeout_ms + GROUP.commit_timeout_ms) / 1000
    (armed,) = told.watchdog.arm.call_args.args
    assert budget < armed <= budget + 15
    assert told.stopping.shut_down() > 0
    assert told.watchdog.arm.call_args.args[0] < armed
    assert told.stopping.begun


async def test_a_job_that_is_done_has_more_time_for_its_last_export_until_it_is_hurried() -> None:
    told = Told.serving()
    asked_to_stop = told.stopping.export_within
    told.stopping.finish("all is handled")
    assert told.stopping.export_within > 4 * asked_to_stop
    assert told.source.leave.call_args.args[0].startswith("all is handled at ")
    told.stopping.shut_down()
    assert told.watchdog.arm.call_args.args[0] > told.stopping.export_within
    told.stopping.request("SIGTERM")
    assert told.stopping.export_within == asked_to_stop


async def test_work_that_is_done_while_a_stop_is_under_way_changes_nothing() -> None:
    told = Told.serving("SIGTERM")
    asked_to_stop = told.stopping.export_within
    told.stopping.finish("all is handled")
    told.source.leave.assert_called_once()
    assert (told.stopping.export_within, told.stopping.hurried) == (asked_to_stop, False)


async def test_what_is_fatal_while_serving_leaves_in_order_with_the_budget_that_there_is_need_of() -> None:
    for in_hand, most in ((True, 60), (False, 15)):
        told = Told.serving()
        told.stopping.wind_up(ConfigError("wrong"), in_hand=in_hand)
        told.source.leave.assert_called_once()
        assert (told.stopping.begun, told.ends) == (True, 0)
        assert told.watchdog.arm.call_args.args[0] < most


async def test_what_is_fatal_before_anything_is_served_or_by_the_groups_refusal_is_the_end() -> None:
    for error, serving in ((ConfigError("wrong"), False), (FatalGroupError("fenced"), True)):
        told = Told()
        if serving:
            told.stopping.begin_serving()
        told.stopping.wind_up(error, in_hand=False)
        told.source.leave.assert_not_called()
        assert (told.stopping.begun, told.ends) == (True, 1)


async def test_what_is_fatal_during_a_stop_leaves_its_order_as_it_is() -> None:
    told = Told.serving("SIGTERM")
    told.stopping.wind_up(ConfigError("wrong"), in_hand=True)
    told.source.leave.assert_called_once()
    assert told.ends == 0
