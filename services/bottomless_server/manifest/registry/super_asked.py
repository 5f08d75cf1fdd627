"""What a request says of a super stream that it wants: how it is divided, and its configuration. Pure."""

from typing import Final, NamedTuple

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.config import StreamConfig, config_differences, parse_config
from bottomless.model.limits import BINDING_KEY_SIZE_MAX, PARTITION_COUNT_MAX, SUPER_NAME_SIZE_MAX
from bottomless.model.names import StreamName, parse_stream_name
from bottomless.model.routing import Strategy
from bottomless.model.super_stream import SuperRecord

_PARTITIONS: Final = "partitions"
_BINDING_KEYS: Final = "binding_keys"


class AskedSuper(NamedTuple):
    """A super stream as a request wants it."""

    config: StreamConfig
    """The configuration of each partition."""
    partition_count: int
    """How many partitions it is to have."""
    binding_keys: tuple[str, ...] = ()
    """The key of each partition, by the strategy of keys; none by that of hashes."""

    @property
    def strategy(self) -> Strategy:
        return Strategy.KEY if self.binding_keys else Strategy.HASH


def parse_super_config(value: object, *, tiered: bool = False) -> AskedSuper:
    """Check the body of a request for a super stream: the configuration of a stream, and with it
    `partitions`, a number, or `binding_keys`, a list of texts.

    `tiered` tells whether tiers and replicas are served, so that a request may ask for them.

    Raises:
        InvalidRequest: `validation-failed`, with a pointer to each fault.
    """
    if not isinstance(value, dict):
        raise refused("must be an object", "")
    if (_PARTITIONS in value) == (_BINDING_KEYS in value):
        raise refused(f"must have exactly one of {_PARTITIONS} and {_BINDING_KEYS}", "")
    rest = {name: one for name, one in value.items() if name not in (_PARTITIONS, _BINDING_KEYS)}
    if _PARTITIONS in value:
        return AskedSuper(parse_config(rest, tiered=tiered), parse_count(value[_PARTITIONS]))
    keys = parse_binding_keys(value[_BINDING_KEYS])
    return AskedSuper(parse_config(rest, tiered=tiered), len(keys), keys)


def parse_count(value: object) -> int:
    """Check a number of partitions.

    Raises:
        InvalidRequest: `validation-failed`.
    """
    # Not isinstance: JSON's true is not a number.
    if type(value) is not int or not 1 <= value <= PARTITION_COUNT_MAX:
        raise refused(f"must be a number from 1 to {PARTITION_COUNT_MAX}", f"/{_PARTITIONS}")
    return value


def parse_binding_keys(value: object) -> tuple[str, ...]:
    """Check the keys of partitions: texts that differ from each other.

    Raises:
        InvalidRequest: `validation-failed`.
    """
    pointer = f"/{_BINDING_KEYS}"
    if not isinstance(value, list) or not 1 <= len(value) <= PARTITION_COUNT_MAX:
        raise refused(f"must be a list of 1 to {PARTITION_COUNT_MAX} texts", pointer)
    seen: dict[str, None] = {}
    for position, key in enumerate(value):
        if not isinstance(key, str) or len(key.encode("utf-8")) > BINDING_KEY_SIZE_MAX:
            sentence = f"must be a text of at most {BINDING_KEY_SIZE_MAX} bytes in UTF-8"
            raise refused(sentence, f"{pointer}/{position}")
        if key in seen:
            raise refused("is the key of another partition too", f"{pointer}/{position}")
        seen[key] = None
    return tuple(seen)


def super_differences(asked: AskedSuper, record: SuperRecord) -> list[str]:
    """List JSON pointers to what a request wants otherwise than it is; empty if it is all the same."""
    own_keys = tuple(one.binding_key for one in record.partitions if one.binding_key is not None)
    pointers = []
    if asked.binding_keys != own_keys:
        pointers.append(f"/{_BINDING_KEYS}")
    if not asked.binding_keys and (own_keys or asked.partition_count != len(record.partitions)):
        pointers.append(f"/{_PARTITIONS}")
    return pointers + config_differences(asked.config, record.config)


def require_super_name(name: StreamName) -> None:
    """Refuse a name that is too long to have numbers after it.

    Raises:
        InvalidRequest: `bad-name`.
    """
    if len(name) > SUPER_NAME_SIZE_MAX:
        raise InvalidRequest(
            f"the name of a super stream must have at most {SUPER_NAME_SIZE_MAX} characters: its"
            " partitions are called after it, with their numbers",
            code=Code.BAD_NAME,
        )


def partition_name(name: StreamName, index: int) -> StreamName:
    """The name of a partition."""
    return parse_stream_name(f"{name}-{index}")


def refused(sentence: str, pointer: str) -> InvalidRequest:
    """What is answered to a body that says something that may not be."""
    return InvalidRequest(
        sentence, code=Code.VALIDATION_FAILED, faults=[Fault("value", sentence, pointer)]
    )
