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
    from kunicorn.decoding import NotDecodableYet, Undecodable
    from kunicorn.handlers import DrainDeadline, HandlerTimeout
    from kunicorn.lifecycle import Worker
    from kunicorn.origins import Origin
    from kunicorn.outcomes import BatchError, DeadLetter, Done, Halt, Outcome, Retry, Skip
    from kunicorn.producing import NotToBeSent, Send
    from kunicorn.records import Batch, Record
    from kunicorn.topics import TopicPartition
else:
    # Type checkers do not see `__getattr__`: with it they would believe every name.
    _MODULES = {
        "Batch": "kunicorn.records",
        "BatchError": "kunicorn.outcomes",
        "DeadLetter": "kunicorn.outcomes",
        "Done": "kunicorn.outcomes",
        "DrainDeadline": "kunicorn.handlers",
        "Halt": "kunicorn.outcomes",
        "HandlerTimeout": "kunicorn.handlers",
        "NotDecodableYet": "kunicorn.decoding",
        "NotToBeSent": "kunicorn.producing",
        "Origin": "kunicorn.origins",
        "Outcome": "kunicorn.outcomes",
        "Record": "kunicorn.records",
        "Retry": "kunicorn.outcomes",
        "Send": "kunicorn.producing",
        "Skip": "kunicorn.outcomes",
        "TopicPartition": "kunicorn.topics",
        "Undecodable": "kunicorn.decoding",
        "Worker": "kunicorn.lifecycle",
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
