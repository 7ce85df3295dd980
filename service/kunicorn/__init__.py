"""kunicorn: gunicorn for Kafka consumers. What users' code imports is here: `from kunicorn import Record, Send`.

Each name is loaded when it is asked for. Every process imports this package first: the supervisor must not load
confluent_kafka by it, nor `--help` anything at all. Inside the package, modules import one another by their real names.
"""

__version__ = "0.2.0"
__all__ = [
    "Batch",
    "BatchError",
    "Call",
    "DeadLetter",
    "Done",
    "DrainDeadline",
    "Halt",
    "HandlerTimeout",
    "NotDecodableYet",
    "NotEncodableYet",
    "NotToBeSent",
    "Origin",
    "Outcome",
    "Record",
    "Retry",
    "Send",
    "Skip",
    "TopicPartition",
    "Undecodable",
    "Unencodable",
    "Wait",
    "Worker",
]

TYPE_CHECKING = False  # Type checkers take it for true by its name; importing `typing` for it would cost every start.
if TYPE_CHECKING:
    from kunicorn.handler.decode import NotDecodableYet, Undecodable
    from kunicorn.handler.encode import NotEncodableYet, Unencodable
    from kunicorn.handler.lifecycle import Worker
    from kunicorn.handler.load import DrainDeadline, HandlerTimeout
    from kunicorn.handler.middleware import Call
    from kunicorn.handler.outcome import (
        BatchError,
        DeadLetter,
        Done,
        Halt,
        NotToBeSent,
        Outcome,
        Retry,
        Send,
        Skip,
        Wait,
    )
    from kunicorn.handler.record import Batch, Origin, Record
    from kunicorn.positions import TopicPartition
else:

    def _on_demand(package, names, modules):
        """`__getattr__` and `__dir__` of a package whose public names are loaded when they are asked for, each from the
        module that defines it. Any other name raises `AttributeError` that lists them."""

        def get(name):
            if name not in modules:
                raise AttributeError(
                    f"module {package['__name__']!r} has no attribute {name!r}; it has {', '.join(names)}"
                )
            from importlib import import_module

            value = package[name] = getattr(import_module(modules[name]), name)
            return value

        return get, lambda: sorted({*package, *names})

    _MODULES = {
        "Batch": "kunicorn.handler.record",
        "BatchError": "kunicorn.handler.outcome",
        "Call": "kunicorn.handler.middleware",
        "DeadLetter": "kunicorn.handler.outcome",
        "Done": "kunicorn.handler.outcome",
        "DrainDeadline": "kunicorn.handler.load",
        "Halt": "kunicorn.handler.outcome",
        "HandlerTimeout": "kunicorn.handler.load",
        "NotDecodableYet": "kunicorn.handler.decode",
        "NotEncodableYet": "kunicorn.handler.encode",
        "NotToBeSent": "kunicorn.handler.outcome",
        "Origin": "kunicorn.handler.record",
        "Outcome": "kunicorn.handler.outcome",
        "Record": "kunicorn.handler.record",
        "Retry": "kunicorn.handler.outcome",
        "Send": "kunicorn.handler.outcome",
        "Skip": "kunicorn.handler.outcome",
        "TopicPartition": "kunicorn.positions",
        "Undecodable": "kunicorn.handler.decode",
        "Unencodable": "kunicorn.handler.encode",
        "Wait": "kunicorn.handler.outcome",
        "Worker": "kunicorn.handler.lifecycle",
    }
    # Type checkers do not see `__getattr__`: with it they would believe every name.
    __getattr__, __dir__ = _on_demand(globals(), __all__, _MODULES)
