"""A right that is taken away while a worker commits several topics together, in transactions, and given back."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AclOperation, ResourceType

from tests.kafka.access import admit, deny
from tests.kafka.secured import PASSWORDS, SecuredCluster
from tests.system.members import Members
from tests.system.outputs import committed_outputs
from tests.system.producing import committed_offsets, produce

RECORDS = 2000


def test_a_topic_that_may_be_read_no_more_holds_up_no_other_and_goes_on_without_a_double_when_it_may(
    secured: SecuredCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    closed, out = f"{topic}.closed", f"{topic}.out"
    for name in (topic, closed, out):
        secured.create_topic(name, 1)
    secured.allow(
        "bob",
        *((ResourceType.TOPIC, name, AclOperation.READ) for name in (topic, closed)),
        (ResourceType.GROUP, topic, AclOperation.READ),
        (ResourceType.TOPIC, out, AclOperation.WRITE),
        (ResourceType.TRANSACTIONAL_ID, "*", AclOperation.ALL),
    )
    login = {"sasl_mechanism": "PLAIN", "sasl_username": "bob", "sasl_password": PASSWORDS["bob"]}
    members = members_of(
        secured.bootstrap,
        topic,
        entrypoint="tests.system.handlers.sending:copy_value",
        workers=1,
        settings={
            "kafka": {
                "bootstrap_servers": [secured.server("LOGIN")],
                "security_protocol": "SASL_PLAINTEXT",
                **login,
            },
            "group": {"topics": [topic, closed]},
            "producing": {"delivery": "transactions", "topic": out, "transaction_max_records": 10},
        },
        env={"KUNICORN_HANDLER_MS": "2"},
    )
    for name, value in ((topic, b"other"), (closed, b"closed")):
        produce(secured.bootstrap, name, RECORDS, value=value)

    def consumed(name: str) -> int:
        try:
            (at,) = committed_offsets(secured.bootstrap, topic, name, 1).values()
        except KafkaException:
            return 0  # They are not stable while one transaction follows the other.
        return max(0, at)

    member = members.start()
    member.wait(lambda: consumed(closed) > 50, "the first transactions")
    deny(secured, "bob", (ResourceType.TOPIC, closed, AclOperation.READ))
    member.wait(lambda: [each["topic"] for each in member.partitions("halted")] == [closed], "it to halt")
    member.wait(lambda: consumed(topic) == RECORDS, "the other topic to be committed")
    admit(secured, "bob", (ResourceType.TOPIC, closed, AclOperation.READ))
    member.wait(lambda: consumed(closed) == RECORDS, "the rest of it to be committed")
    assert member.stop() == 0, member.output()[-3000:]
    outputs = committed_outputs(secured.bootstrap, out, 1)
    assert (outputs["other"], outputs["closed"]) == (RECORDS, RECORDS)
