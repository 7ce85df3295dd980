"""Finding of `kunicorn check` about transactions: whether the brokers let this user begin them, for as long as the
settings want. No topic and no group tells that. Blocks.
"""

from __future__ import annotations

import socket
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from kunicorn.clients.access import made, token_renewal
from kunicorn.clients.config import producing_target
from kunicorn.commands.check.cluster import Finding
from kunicorn.errors import ConfigError, ExitCode
from kunicorn.librdkafka.errors import fault_of
from kunicorn.settings import Settings
from kunicorn.supervisor.workers.transactions import id_prefix

_LIMIT = 10.0
"""Seconds: a new cluster creates __transaction_state when it is first asked for an id."""


def transactions(settings: Settings) -> Finding:
    """Whether a producer gets an id beside the workers' (InitProducerId). No worker is fenced by it."""
    # With the prefix of the workers', which end with their place: the same rights are needed.
    name = f"{id_prefix(settings, socket.gethostname)}-check"
    target = producing_target(settings, f"{settings.kafka.client_id}-check", name)
    assert target is not None
    own: dict[str, Any] = {**target.client, "log_level": 0, **token_renewal(settings.kafka)}
    try:
        made(lambda: Producer(own)).init_transactions(_LIMIT)
    except ConfigError as error:
        return Finding("outputs", str(error), ExitCode.CONFIGURATION)
    except KafkaException as failure:
        refusal: KafkaError = failure.args[0]
        text = f"transactional id {name!r}: {refusal.str()}; {fault_of(refusal.code()).remedy()}"
        return Finding("outputs", text, ExitCode.CONFIGURATION, passes=refusal.retriable())
    return Finding("outputs", f"brokers begin transactions for {name!r}, an id beside the workers'")
