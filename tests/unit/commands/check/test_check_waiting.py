"""`kunicorn check --wait`, the init container of a pod."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from kunicorn.commands.check import session
from kunicorn.commands.check.cluster import Finding
from kunicorn.errors import ExitCode
from tests.fakes.complete_settings import settings_of


def test_a_pod_that_is_deleted_while_it_waits_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """To PID 1, which the container's command is, a signal without a handler is not delivered: the pod would stay for
    its whole grace period.
    """

    def away(_: object) -> Iterator[Finding]:
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        yield Finding("brokers", "no broker answers", ExitCode.CONFIGURATION, passes=True)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(session, "_findings_here", lambda _: ())
    monkeypatch.setattr(session, "_findings_beyond", away)
    with pytest.raises(KeyboardInterrupt):
        session.check(settings_of(), lambda _: None, waits=True)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
