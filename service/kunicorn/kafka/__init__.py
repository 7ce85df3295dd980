"""Kafka's wire protocol, as far as a group member needs it: codec, connections, cluster, coordinator.

Runs in the supervisor and in commands, on their event loop. Independent of workers and of the reactions to errors:
every call returns plain data with Kafka's error codes as integers, or raises a `PeerError` if the transport failed.

1. One broker connection carries one purpose. A broker handles a connection's requests one at a time, so whatever stands
   behind a parked JoinGroup waits until the rebalance is over.
2. Answers are never matched with requests by position: brokers reorder topics and partitions, and leave some out.
3. Versions are negotiated anew on every connection: brokers are upgraded one by one.
"""

from __future__ import annotations

import sys

if "hypothesis" not in sys.modules:
    # kio registers its types with this testing library wherever that is installed: a third of the CPU time of a start.
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    import kio.static.primitive  # noqa: F401

    del sys.modules["hypothesis"]
