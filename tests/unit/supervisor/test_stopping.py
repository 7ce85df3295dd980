"""What each request to stop comes to: in order the first time, at once the second."""

from __future__ import annotations

from unittest import mock

from kunicorn.settings import GroupSettings
from kunicorn.supervisor.source import Source, Words
from kunicorn.supervisor.stopping import Stopping

GROUP = GroupSettings(id="g", topics=("orders",))


class Told:
    """A source that writes down what it is told."""

    def __init__(self) -> None:
        self.source = mock.Mock(spec=Source, over=False, words=Words("leaving", "clean", "unclean", "overdue"))
        self.ends = 0
        self.stopping = Stopping(self.source, GROUP, self._end)

    def _end(self) -> None:
        self.ends += 1


def test_before_anything_is_begun_a_stop_is_the_end() -> None:
    told = Told()
    told.stopping.ask("SIGTERM")
    assert told.stopping.begun
    assert told.ends == 1
    told.source.leave.assert_not_called()


async def test_a_service_that_serves_leaves_in_order_and_waits() -> None:
    told = Told()
    told.stopping.serving = True
    told.stopping.ask("SIGTERM")
    assert told.source.leave.call_args.args[0].startswith("SIGTERM at ")
    assert (told.ends, told.stopping.hurried) == (0, False)


async def test_a_second_signal_stops_at_once_but_a_second_request_to_drain_does_not() -> None:
    told = Told()
    told.stopping.serving = True
    assert told.stopping.ask_once("asked for over HTTP")
    assert not told.stopping.ask_once("asked for over HTTP")
    assert (told.ends, told.stopping.hurried) == (0, False)
    told.stopping.ask("SIGINT")
    told.source.hurry.assert_called_once_with()
    assert (told.ends, told.stopping.hurried) == (1, True)


async def test_nothing_is_hurried_once_it_is_over() -> None:
    told = Told()
    told.stopping.serving = True
    told.stopping.ask("SIGTERM")
    told.source.over = True
    told.stopping.ask("SIGTERM")
    told.source.hurry.assert_not_called()
    assert not told.stopping.hurried
