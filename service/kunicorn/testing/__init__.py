"""Testing a handler without a broker: records in memory, through the code that workers run.

    from kunicorn.testing import HandlerTest, record

    def test_a_negative_total_is_a_dead_letter():
        test = HandlerTest("shop.handlers:handle_order", settings={"dead_letters": {"topic": "shop.dead-letters"}})
        run = test.run(record(json={"total": -1}), record(json={"total": 3}))
        assert run.outcomes == ["dead_letter", "done"]

docs/testing.md has the rest. pytest is imported by `kunicorn.testing.plugin` alone.
"""

from kunicorn.testing.harness import HandlerTest
from kunicorn.testing.memory import GivenRecord, SentRecord, record
from kunicorn.testing.outcome import Handled, Outcome, Run

__all__ = ["GivenRecord", "Handled", "HandlerTest", "Outcome", "Run", "SentRecord", "record"]
