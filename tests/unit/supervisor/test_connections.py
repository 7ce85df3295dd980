"""The clients of the brokers that the service keeps."""

from __future__ import annotations

from unittest import mock

from kunicorn.kafka.cluster import Cluster
from kunicorn.supervisor.connections import Connections
from kunicorn.supervisor.facts import MemberState
from tests.fakes.stage import settings_with


def test_a_login_that_a_broker_refused_is_tried_again_from_the_start_on() -> None:
    cluster = mock.Mock(spec=Cluster)
    again = cluster.retry_refused = mock.Mock()
    connections = Connections(settings_with("earliest"), cluster, mock.Mock(spec=MemberState))
    assert list(connections.logins(lambda _: None)) == [again.return_value]
