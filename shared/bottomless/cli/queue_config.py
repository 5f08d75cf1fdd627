"""Options for a queue's configuration, shared by the commands that create and change a queue."""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from bottomless.cli.queue_names import TIME, checked_queue
from bottomless.cli.stream_config import label_in, number_in, taking
from bottomless.cli.stream_names import checked_stream
from bottomless.model.duration import parse_milliseconds
from bottomless.model.size import parse_size

_DEFAULT: Final = "default"
"""Takes a member back, as null does."""


class _Overflow(StrEnum):
    REJECT = "reject"
    DROP_HEAD = "drop-head"
    DEFAULT = _DEFAULT


def queue_config_of(
    visibility_ms: Annotated[
        str | None,
        typer.Option(help=f"How long a consumer has for a message: {TIME}, or default."),
    ] = None,
    delay_ms: Annotated[
        str | None, typer.Option(help=f"How long a new message waits: {TIME}, or default.")
    ] = None,
    message_ttl_ms: Annotated[
        str | None, typer.Option(help=f"How long a message is there at most: {TIME}, or default.")
    ] = None,
    dedup_ms: Annotated[
        str | None, typer.Option(help=f"How long publishes are remembered: {TIME}, or default.")
    ] = None,
    max_messages: Annotated[
        str | None, typer.Option(help="How many messages may be there, or default.")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option(help="How many bytes they may have: 10GB, 64MiB, or default.")
    ] = None,
    overflow: Annotated[
        _Overflow | None, typer.Option(help="What happens at these two bounds.")
    ] = None,
    max_deliveries: Annotated[
        str | None, typer.Option(help="After so many a message is a dead letter, or default.")
    ] = None,
    dead_letter_queue: Annotated[
        str | None,
        typer.Option(help="The queue of its dead letters, or default.", callback=checked_queue),
    ] = None,
    dead_letter_stream: Annotated[
        str | None,
        typer.Option(help="The stream of its dead letters, or default.", callback=checked_stream),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(
            help="The stream that gets what was acknowledged, or default.", callback=checked_stream
        ),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, or NAME= for none; repeatable.")
    ] = None,
) -> dict[str, Any]:
    """Make a configuration of the members that were named.

    Raises:
        typer.BadParameter: a number is none, or two options exclude each other.
    """
    if dead_letter_queue is not None and dead_letter_stream is not None:
        raise typer.BadParameter(
            "goes without --dead-letter-queue", param_hint="--dead-letter-stream"
        )
    config = {
        **_number("visibility_ms", visibility_ms, parse_milliseconds),
        **_number("delay_ms", delay_ms, parse_milliseconds),
        **_number("message_ttl_ms", message_ttl_ms, parse_milliseconds),
        **_number("dedup_ms", dedup_ms, parse_milliseconds),
        **_number("max_messages", max_messages, _plain),
        **_number("max_bytes", max_bytes, parse_size),
        **_number("max_deliveries", max_deliveries, _plain),
        **_target("dead_letter", "queue", dead_letter_queue),
        **_target("dead_letter", "stream", dead_letter_stream),
        **_target("archive", "stream", archive),
    }
    if overflow is not None:
        config["overflow"] = None if overflow is _Overflow.DEFAULT else overflow.value
    if label:
        config["labels"] = dict(map(label_in, label))
    return config


taking_queue_config: Final = taking(queue_config_of)
"""Give a command the options of a queue's configuration."""


def _number(name: str, text: str | None, parse: Callable[[str], int]) -> dict[str, Any]:
    if text is None:
        return {}
    option = f"--{name.replace('_', '-')}"
    return {name: None if text == _DEFAULT else number_in(text, option, parse)}


def _target(name: str, kind: str, target: str | None) -> dict[str, Any]:
    if target is None:
        return {}
    return {name: None if target == _DEFAULT else {kind: target}}


def _plain(_text: str) -> int:
    raise ValueError("it must be a whole number")
