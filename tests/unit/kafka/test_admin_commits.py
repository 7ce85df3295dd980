"""How long brokers keep what a client that is no member commits."""

from __future__ import annotations

import pytest

from kunicorn.kafka.admin import GroupAdmin
from kunicorn.kafka.versions import Api
from tests.fakes.broker import FakeBroker, cluster_of, found_at


@pytest.mark.parametrize(("oldest", "takes"), [(0, True), (2, True), (4, True), (5, False)])
async def test_a_broker_takes_a_retention_that_has_the_last_version_which_says_it(oldest: int, takes: bool) -> None:
    async with FakeBroker(7) as broker:
        broker.lead([broker], {"t": {0: (7, 1)}})
        broker.versions[Api.OFFSET_COMMIT] = (oldest, 10)
        broker.script[Api.FIND_COORDINATOR] = lambda asked: found_at(broker, asked)
        cluster = cluster_of(broker)
        try:
            assert await GroupAdmin(cluster, "g", 10.0).takes_retention() is takes
        finally:
            await cluster.close()
