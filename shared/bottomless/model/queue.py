"""Work queues: a message as it is kept, why one leaves, and the configuration of a queue.

A message goes to one consumer, which acknowledges it by itself; what is not acknowledged in time is
delivered again. Pure.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from bottomless.errors import InvalidRequest
from bottomless.model.closed_schema import Closed, checked, merged, read_size, refused
from bottomless.model.limits import (
    DEDUP_MS_DEFAULT,
    DEDUP_MS_MAX,
    DELAY_MS_MAX,
    DELIVERY_COUNT_MAX,
    LABEL_COUNT_MAX,
    LABEL_SIZE_MAX,
    MESSAGE_TTL_MS_MAX,
    OFFSET_MAX,
    VISIBILITY_MS_DEFAULT,
    VISIBILITY_MS_MAX,
)
from bottomless.model.names import parse_queue_name, parse_stream_name
from bottomless.model.record import Content


class QueuePlace(NamedTuple):
    """The place at which a message was published: a queue, and its number there."""

    queue_id: bytes
    """16 bytes, which no other queue ever has."""
    sequence: int
    """Number of the message in that queue, from 0."""


class QueueMessage(NamedTuple):
    """A message as it is kept: once, in however many queues it was published."""

    content: Content
    priority: int
    """0 to 9; of two messages the one with the higher is delivered first."""
    published_at: int
    """Milliseconds since 1970."""
    expires_at: int | None
    """When it ends by itself wherever it is, in ms since 1970; None where it does not."""
    queues: tuple[QueuePlace, ...]
    headers: tuple[tuple[str, bytes], ...]
    value: bytes | memoryview
    due_at: int | None = None
    """When it becomes ready, as whoever published it has asked, in ms since 1970; None where it is
    as each queue is configured.
    """


class LeaveReason(StrEnum):
    """Why a message left a queue for another queue or for a stream."""

    MAX_DELIVERIES = "max-deliveries"
    EXPIRED = "expired"
    MAX_LENGTH = "max-length"
    REJECTED = "rejected"
    ACKNOWLEDGED = "acknowledged"


def _name_rule(parse: Any) -> Any:
    def check(text: str) -> str:
        try:
            parse(text)
        except InvalidRequest as error:
            raise ValueError(str(error)) from error
        return text

    return AfterValidator(check)


_QueueName = Annotated[str, _name_rule(parse_queue_name)]
_StreamName = Annotated[str, _name_rule(parse_stream_name)]
_Label = Annotated[str, Field(max_length=LABEL_SIZE_MAX)]
_Count = Annotated[int, Field(ge=1, le=OFFSET_MAX)]


class DeadLetterConfig(Closed):
    """Where messages go that were delivered too often, expired or were rejected."""

    queue: _QueueName | None = None
    stream: _StreamName | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.queue is None) == (self.stream is None):
            raise ValueError("must name either a queue or a stream")
        return self


class ArchiveConfig(Closed):
    """The stream that gets each message that was acknowledged."""

    stream: _StreamName


class QueueConfig(Closed):
    """The configuration of a queue; every member has a default."""

    visibility_ms: Annotated[int, Field(ge=0, le=VISIBILITY_MS_MAX)] = VISIBILITY_MS_DEFAULT
    """How long a message that was delivered is nobody else's, where a receive does not say it."""
    delay_ms: Annotated[int, Field(ge=0, le=DELAY_MS_MAX)] = 0
    """How long a new message waits before anybody gets it, where its publish does not say it."""
    message_ttl_ms: Annotated[int, Field(ge=1, le=MESSAGE_TTL_MS_MAX)] | None = None
    """How long a message is there at most; None for as long as nobody acknowledges it."""
    dedup_ms: Annotated[int, Field(ge=0, le=DEDUP_MS_MAX)] = DEDUP_MS_DEFAULT
    """How long a publish is remembered, so that a repeat of it stores nothing."""
    max_messages: _Count | None = None
    max_bytes: Annotated[_Count | None, BeforeValidator(read_size)] = None
    overflow: Literal["reject", "drop-head"] = "reject"
    """What happens at these two bounds: a publish is refused, or the first messages leave."""
    max_deliveries: Annotated[int, Field(ge=1, le=DELIVERY_COUNT_MAX)] | None = None
    """How often a message is delivered before it becomes a dead letter; None for ever again."""
    dead_letter: DeadLetterConfig | None = None
    archive: ArchiveConfig | None = None
    labels: Annotated[dict[_Label, _Label], Field(max_length=LABEL_COUNT_MAX)] = Field(
        default_factory=dict
    )


_SECTIONS: Final[Mapping[str, type[Closed]]] = {
    "dead_letter": DeadLetterConfig,
    "archive": ArchiveConfig,
}


def parse_queue_config(value: object) -> QueueConfig:
    """Check a readable JSON value against the schema of a queue's configuration.

    Raises:
        InvalidRequest: `validation-failed`, with a pointer to each fault.
    """
    config = checked(QueueConfig, value, _SECTIONS)
    if config.max_deliveries is not None and config.dead_letter is None:
        raise refused(
            "missing-dead-letter",
            "max_deliveries needs a dead_letter, where messages go that were delivered so often",
            "/max_deliveries",
        )
    return config


def patch_queue_config(config: QueueConfig, patch: object) -> QueueConfig:
    """Apply a merge patch (RFC 7396) to a configuration; null takes a member back to its default.

    Raises:
        InvalidRequest: `validation-failed`, with a pointer to each fault.
    """
    return parse_queue_config(merged(encode_queue_config(config), patch))


def encode_queue_config(config: QueueConfig) -> dict[str, Any]:
    """Turn a configuration into plain JSON values, as it is kept and as it is shown."""
    members = config.model_dump(mode="json")
    for section in _SECTIONS:
        if members[section] is not None:
            members[section] = {
                name: value for name, value in members[section].items() if value is not None
            }
    return members


def queue_config_differences(mine: QueueConfig, theirs: QueueConfig) -> list[str]:
    """List JSON pointers to the members in which two configurations differ; empty if they are
    equal.
    """
    left, right = encode_queue_config(mine), encode_queue_config(theirs)
    sorted_ = orjson.OPT_SORT_KEYS
    return [
        f"/{member}"
        for member in left
        if orjson.dumps(left[member], option=sorted_) != orjson.dumps(right[member], option=sorted_)
    ]
