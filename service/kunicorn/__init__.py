"""kunicorn: gunicorn for Kafka consumers. What users' code imports is here: `from kunicorn import Record, Send`.

Each name is loaded when it is asked for. Every process imports this package first: the supervisor must not load
confluent_kafka by it, nor `--help` anything at all. Inside the package, modules import one another by their real names.
"""

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "BatchError",
    "DeadLetter",
    "Done",
    "DrainDeadline",
    "Halt",
    "HandlerTimeout",
    "NotDecodableYet",
    "NotToBeSent",
    "Origin",
    "Outcome",
    "Record",
    "Retry",
    "Send",
    "Skip",
    "TopicPartition",
    "Undecodable",
    "Worker",
]

TYPE_CHECKING = False  # Type checkers take it for true by its name; importing `typing` for it would cost every start.
if TYPE_CHECKING:
    from kunicorn.handler.decode import NotDecodableYet, Undecodable
    from kunicorn.handler.lifecycle import Worker
    from kunicorn.handler.load import DrainDeadline, HandlerTimeout
    from kunicorn.handler.outcome import BatchError, DeadLetter, Done, Halt, NotToBeSent, Outcome, Retry, Send, Skip
    from kunicorn.handler.record import Batch, Origin, Record
    from kunicorn.positions import TopicPartition
else:
    # Type checkers do not see `__getattr__`: with it they would believe every name.
    _MODULES = {
        "Batch": "kunicorn.handler.record",
        "BatchError": "kunicorn.handler.outcome",
        "DeadLetter": "kunicorn.handler.outcome",
        "Done": "kunicorn.handler.outcome",
        "DrainDeadline": "kunicorn.handler.load",
        "Halt": "kunicorn.handler.outcome",
        "HandlerTimeout": "kunicorn.handler.load",
        "NotDecodableYet": "kunicorn.handler.decode",
        "NotToBeSent": "kunicorn.handler.outcome",
        "Origin": "kunicorn.handler.record",
        "Outcome": "kunicorn.handler.outcome",
        "Record": "kunicorn.handler.record",
        "Retry": "kunicorn.handler.outcome",
        "Send": "kunicorn.handler.outcome",
        "Skip": "kunicorn.handler.outcome",
        "TopicPartition": "kunicorn.positions",
        "Undecodable": "kunicorn.handler.decode",
        "Worker": "kunicorn.handler.lifecycle",
    }

    def __getattr__(name):
        """A public name, from the module that defines it. Raises `AttributeError` that lists them for any other."""
        if name not in _MODULES:
            raise AttributeError(f"module 'kunicorn' has no attribute {name!r}; it has {', '.join(__all__)}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
