"""Validators of single values, and the base class of all sections. Each raises `ValueError` with what is wrong and what
would be right. Pure. Rules between several settings are in `rules`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from kunicorn.errors import ConfigError
from kunicorn.handler.config import REGISTERED
from kunicorn.kafka.auth import parse_seeds
from kunicorn.librdkafka.properties import OWNED_BY_PRODUCING, OWNED_PROPERTIES

T = TypeVar("T")

_LONGEST_NAME = 249
_SHORTEST_TOKEN = 16
_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")
_KAFKA_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def is_broker_address(server: str) -> str:
    """ "host:port", or "[address]:port" for IPv6."""
    try:
        parse_seeds([server])
    except ConfigError:
        raise ValueError("not a broker's address; write host:port, or [address]:port for IPv6") from None
    return server


def is_kafka_name(name: str) -> str:
    """A legal topic name or instance id (`Topic.java`, and `JoinGroupRequest.java` for instance ids)."""
    if not _KAFKA_NAME.fullmatch(name) or name in {".", ".."} or len(name) > _LONGEST_NAME:
        raise ValueError(
            f"not a legal name; letters, digits, '.', '_' and '-' are allowed, at most {_LONGEST_NAME} characters"
        )
    return name


def has_legal_name(topic: str) -> bool:
    """Whether a topic may have that name."""
    try:
        is_kafka_name(topic)
    except ValueError:
        return False
    return True


def is_topic_or_pattern(topic: str) -> str:
    """A topic's name, or with a leading ^ a regular expression that compiles."""
    if not topic.startswith("^"):
        try:
            return is_kafka_name(topic)
        except ValueError as error:
            raise ValueError(f"{error}; a pattern begins with ^") from None
    try:
        re.compile(topic)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression ({error}); correct it, or drop the ^ of a plain name") from None
    return topic


def is_group_id(group_id: str) -> str:
    """Not blank: the broker refuses an empty one, and one of spaces is a template that was not filled in."""
    if not group_id.strip():
        raise ValueError("empty; give the group a name")
    return group_id


def is_entrypoint(entrypoint: str) -> str:
    """package.module:attribute. Whether it can be imported is found out in the handler's own process."""
    module, colon, attribute = entrypoint.partition(":")
    names = [*module.split("."), *attribute.split(".")]
    if not colon or not all(name.isidentifier() for name in names):
        raise ValueError("not of the form package.module:attribute; write it such as shop.handlers:handle_order")
    return entrypoint


def is_part_of_record(part: str) -> str:
    """What a filter looks at: "key", or "header:" and a name."""
    kind, _, name = part.partition(":")
    if part != "key" and not (kind == "header" and name):
        raise ValueError('neither the key nor a header; write "key", or "header:" and its name, such as "header:type"')
    return part


def is_host_name(name: str) -> str:
    """A host's name as it is compared with what browsers send: in small letters, without the dot at its end."""
    found = name.lower().removesuffix(".")
    if not _HOST_NAME.fullmatch(found):
        raise ValueError(
            "not the name of a host, and would match none; write it without scheme, port and patterns, as a browser "
            "has it, such as orders.example.com"
        )
    return found


def is_http_url(url: str) -> str:
    """URL to POST to, without credentials, as it is shown."""
    credentials = "sasl_oauthbearer_client_id and sasl_oauthbearer_client_secret"
    http_address(url, "https://login.example.com/oauth2/token", credentials)
    return url


def http_address(url: str, example: str, credentials: str) -> SplitResult:
    """Parts of a URL of HTTP without credentials; `credentials` names the settings that are for them. Raises
    `ValueError`, which quotes no part of it.
    """
    if "@" in url:
        # Wherever it is: a password with a slash in it ends the authority for whoever takes URLs apart.
        raise ValueError(f"holds credentials; set {credentials} instead (an @ of a path is %40)")
    parts = http_parts(url)
    if parts is None or re.search(r"[\s\x00-\x1f\x7f]", url):
        raise ValueError(f"not an address; write it such as {example}")
    return parts


def http_parts(url: str) -> SplitResult | None:
    """Parts of a URL of HTTP, None for what is none. Neither is one whose port is beyond 65535: the system would take
    it modulo 65536, and ask whoever listens there.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts if parts.scheme in {"http", "https"} and parts.hostname else None


def is_not_empty(secret: SecretStr) -> SecretStr:
    """A secret that is not empty: an empty one is a variable or a template that was not filled in."""
    if not secret.get_secret_value():
        raise ValueError("empty; leave it out, or give it a value")
    return secret


def is_header_value(text: str) -> bool:
    """Whether an HTTP header carries it as it is: blanks around a value are taken off on its way."""
    return _HEADER_VALUE.fullmatch(text) is not None and text == text.strip()


def is_token(secret: SecretStr) -> SecretStr:
    """A secret too long to be guessed, which whoever has it can send."""
    if len(secret.get_secret_value()) < _SHORTEST_TOKEN:
        raise ValueError(f"shorter than {_SHORTEST_TOKEN} characters; make one with: openssl rand -hex 32")
    if not is_header_value(secret.get_secret_value()):
        raise ValueError("not what an HTTP header carries; use printable ASCII, no blanks around it")
    return secret


def is_extensions(text: str) -> str:
    """name=value pairs, separated by commas (RFC 7628: names are letters; "auth" is the token's own)."""
    if not re.fullmatch(r"(?!auth=)[A-Za-z]+=[^,=\x01]+(,(?!auth=)[A-Za-z]+=[^,=\x01]+)*", text):
        raise ValueError("not name=value pairs, separated by commas; names are letters, and not 'auth'")
    return text


def assignors_differ(assignors: Sequence[T]) -> Sequence[T]:
    """Assignors without repetition: a broker refuses a JoinGroup that names a protocol twice."""
    if len(set(assignors)) < len(assignors):
        raise ValueError("names one of them twice; leave one out")
    return assignors


def is_transactional_id(name: str) -> str:
    """Prefix of a transactional.id: brokers take any text, but a blank one was not filled in."""
    if not name.strip() or len(name) > _LONGEST_NAME:
        raise ValueError(f"empty, or longer than {_LONGEST_NAME} characters; leave it out, or give it a value")
    return name


def librdkafka_properties(properties: Any) -> Any:
    """Consumer properties that the user may set, by their dotted names."""
    return _properties(properties, OWNED_PROPERTIES)


def producer_librdkafka_properties(properties: Any) -> Any:
    """Producer properties that the user may set, by their dotted names."""
    return _properties(properties, {**OWNED_PROPERTIES, **OWNED_BY_PRODUCING})


def _properties(properties: Any, owned: Mapping[str, str]) -> Any:
    if not isinstance(properties, Mapping):
        return properties
    for name, value in properties.items():
        if reason := owned.get(name):
            raise ValueError(f"{name!r} cannot be set here: {reason}")
        if isinstance(value, Mapping):
            raise ValueError(f'{name!r} is a table; put the dotted name in quotes: "{_dotted(name, value)}" = …')
        if not isinstance(value, str | int | float | bool):
            raise ValueError(f"{name!r} is {type(value).__name__}; a property is a text, a number or true or false")
        if not fits_a_message(value):
            raise ValueError(f"{name!r} is {_NO_NUMBER}; correct it")
    return properties


_NO_NUMBER = "no finite number of at most 64 bits"


def fits_a_message(value: Any) -> bool:
    """Whether a scalar arrives at our other processes as it is: JSON has no infinite number, our messages 64 bits."""
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or -(2**63) <= value < 2**64


def are_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a handler gets as its options. A number's value is not told: an option may be a secret."""
    for name in _unfit("", options):
        raise ValueError(f"{name} is {_NO_NUMBER}; write it as a text, and let setup(options) read that")
    return options


def _unfit(place: str, value: Any) -> Iterator[str]:
    """Places in tables and lists of numbers that do not arrive."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _unfit(f"{place}.{name}".lstrip("."), item)
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from _unfit(f"{place}[{at}]", item)
    elif not fits_a_message(value):
        yield place


def _dotted(name: str, value: Any) -> str:
    while isinstance(value, Mapping) and value:
        inner, value = next(iter(value.items()))
        name = f"{name}.{inner}"
    return name


def is_class_name(name: str) -> str:
    """package.module.Class. Whether it exists is found out in the handler's own process."""
    parts = name.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError("not of the form package.module.Class; write it such as builtins.ValueError")
    return name


DECODERS = ("bytes", "text", "json", "avro", "jsonschema")
"""Names of decoders that stand alone."""


def is_decoder(name: str) -> str:
    """One of `DECODERS`, protobuf:package.module:Message, or package.module:function of the user's."""
    if name in DECODERS:
        return name
    if name.partition(":")[0] == "protobuf":
        try:
            is_entrypoint(name.partition(":")[2])
        except ValueError:
            raise ValueError("protobuf needs the message's class; write protobuf:package.module_pb2:Message") from None
        return name
    try:
        return is_entrypoint(name)
    except ValueError:
        raise ValueError(
            f"no decoder; it can be {', '.join(DECODERS)}, protobuf:package.module_pb2:Message, or a function of yours "
            f"as package.module:function"
        ) from None


ENCODERS = ("bytes", "json", "avro", "jsonschema", "protobuf")
"""Names of encoders that stand alone."""


def is_encoder(name: str) -> str:
    """One of `ENCODERS`, protobuf:package.module:Message, or package.module:function of the user's."""
    try:
        if name not in ENCODERS:
            is_entrypoint(name.removeprefix("protobuf:"))
    except ValueError:
        raise ValueError(
            f"no encoder; it can be {', '.join(ENCODERS)}, protobuf:package.module_pb2:Message, or a function of yours "
            f"as package.module:function"
        ) from None
    return name


def is_schema_source(source: str) -> str:
    """latest, id:7, version:3, file:path, or package.module:attribute."""
    kind, _, rest = source.partition(":")
    if source == "latest" or (kind in {"id", "version"} and rest.isdecimal()) or (kind == "file" and rest):
        return source
    try:
        if kind not in {"id", "version", "file"}:
            return is_entrypoint(source)
    except ValueError:
        pass
    raise ValueError(
        "no schema; it can be latest, id:7 or version:3 of the registry, or yours as file:order.avsc or as "
        "package.module:attribute"
    )


def needs_registry(decoder: str) -> bool:
    """Whether the decoder, or encoder, asks a schema registry."""
    return decoder.partition(":")[0] in REGISTERED


MOST_MILLISECONDS = 2**31 - 1
"""Kafka's messages carry times as int32."""

MOST_COUNT = 2**53 - 1
"""What is unlimited for every purpose, and still the same number in JSON, in a float and in the 64 bits of the messages
between our processes: a larger one would be accepted at the start, and break the first message that carries it."""

Count = Annotated[int, Field(ge=1, le=MOST_COUNT)]

Milliseconds = Annotated[int, Field(ge=1, le=MOST_MILLISECONDS)]

MillisecondsOfYears = Annotated[int, Field(ge=1, le=100 * 365 * 86_400_000)]
"""How old a record may become, which is for topics and clocks to say, and for no message of Kafka's: int32 milliseconds
end after 24 days."""


class Section(BaseModel):
    """Base of every table of the file. Strict: a port is a number, not a text that looks like one."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, hide_input_in_errors=True
    )
