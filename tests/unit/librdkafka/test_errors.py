"""librdkafka's errors have names and remedies, and what it repeats is told once a period."""

from __future__ import annotations

import logging

from confluent_kafka import KafkaError

from kunicorn.kafka_errors import ErrorCode, fault
from kunicorn.librdkafka.errors import OncePerPeriod, fault_of

REFUSED = "FAIL [thrd:127.0.0.1:9092/bootstrap]: Connect failed: Connection refused (after {}ms in state CONNECT)"


class Teller:
    """A logger's filter and a clock set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self._filter = OncePerPeriod(10.0, lambda: self.now)

    def tell(self, text: str) -> str | None:
        """The line as it is written, if it is."""
        record = logging.LogRecord("n", logging.ERROR, "f", 1, text, None, None)
        return record.getMessage() if self._filter.filter(record) else None


def test_the_first_line_of_a_kind_is_told_at_once_and_its_repetitions_are_not() -> None:
    teller = Teller()
    assert teller.tell(REFUSED.format(0)) == REFUSED.format(0)
    assert teller.tell(REFUSED.format(3)) is None


def test_after_the_period_one_line_says_how_many_were_left_out() -> None:
    teller = Teller()
    for _ in range(5):
        teller.tell(REFUSED.format(0))
    teller.now = 10.0
    assert teller.tell(REFUSED.format(1)) == f"{REFUSED.format(1)} (and 4 more like this)"
    assert teller.tell(REFUSED.format(1)) is None


def test_another_broker_is_another_kind() -> None:
    teller = Teller()
    assert teller.tell(REFUSED.format(0))
    assert teller.tell(REFUSED.format(0).replace("9092", "9093"))


def test_lines_that_never_repeat_do_not_fill_the_memory() -> None:
    teller = Teller()
    assert all(teller.tell(f"line {number}") for number in range(3000))
    assert len(teller._filter._kinds) <= 1000


def test_codes_from_the_brokers_mean_the_same_to_both_clients() -> None:
    assert all(fault_of(code) == fault(code) for code in ErrorCode)


def test_every_code_of_librdkafkas_own_has_a_row() -> None:
    own = {name: code for name, code in vars(KafkaError).items() if isinstance(code, int) and code < -1}
    assert own
    assert {name: fault_of(code).name for name, code in own.items()} == {name: name for name in own}
    unknown = fault(-999).advice
    assert not [name for name, code in own.items() if fault_of(code).advice == unknown]
