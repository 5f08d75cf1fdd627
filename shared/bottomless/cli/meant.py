"""Meant: what the name on a command line is that of, so that a failure can name it, and the command or the option.

A stream and a super stream share no name. Who takes one for the other is told that there is no such
stream, which is true and no help. What is wrong with a queue's configuration the server says of the
members that it was sent, which came from options.
"""

from contextlib import suppress
from typing import Any, Final, NamedTuple

import typer

from bottomless.cli.hints import hint_for
from bottomless.cli.reasons import Reason
from bottomless.errors import Code, Fault, StoreError
from bottomless.model.names import parse_queue_name, parse_stream_name

_MEANT: Final = "bottomless.cli.meant"
_SECONDS_MAX: Final = 5.0
"""A failure is told after this long even if the server does not say what the name is that of."""
_SUPER: Final = "super"
_QUEUE: Final = "queue"
NO_QUEUE: Final = "`bottomless queue ls` shows the queues, `bottomless queue create` makes one"
"""What to do where there is no such queue."""
NO_STREAM: Final = "`bottomless ls` shows the streams, `bottomless create` makes one"
"""What to do where there is no such stream."""
OVER_HTTP: Final = "; PUT /v1/"
"""Here the server begins to say how to do it over HTTP; the advice says it for the command line."""
_NO_TARGET: Final = "needs --dead-letter-queue or --dead-letter-stream"
_OF_SUPER_STREAMS: Final = {
    "describe": "super describe",
    "rm": "super rm",
    "update": "super update",
}
"""Commands of streams that super streams have too."""


class _Meant(NamedTuple):
    name: str
    command: str
    """The words of the command, without that of the program."""


def note_stream(context: typer.Context, text: str | None) -> str | None:
    """Check the name of a stream or super stream, before anything is asked or sent, and remember it.

    Raises:
        InvalidRequest: `bad-name`, which ends the program.
    """
    if text is None:
        return None
    context.meta[_MEANT] = _Meant(text, context.command_path.partition(" ")[2])
    return parse_stream_name(text)


def note_queue(context: typer.Context, text: str) -> str:
    """Check the name of a queue, before anything is asked or sent, and remember it.

    Raises:
        InvalidRequest: `bad-name`, which ends the program.
    """
    context.meta[_MEANT] = _Meant(text, context.command_path.partition(" ")[2])
    return parse_queue_name(text)


def note_name(context: typer.Context, text: str) -> str:
    """Remember a name that the server checks, and the command that it was given to."""
    context.meta[_MEANT] = _Meant(text, context.command_path.partition(" ")[2])
    return text


def reason_in(context: Any, error: StoreError) -> Reason | None:
    """Say what the name is that of if it is not that of what the command is for; None if that is no help."""
    meant = context.meta.get(_MEANT)
    if meant is None:
        return None
    group = meant.command.partition(" ")[0]
    if group == _SUPER:
        return _of_super_command(error)
    if group == _QUEUE:
        return _of_queue_command(meant, error)
    hint = hint_for(meant.command, error.code)
    if hint is not None:
        return Reason(error.message, hint)
    if error.code is not Code.STREAM_NOT_FOUND:
        return None
    # A server of before does not say it by itself.
    if "super_id" in error.facts or _is_super(context, meant.name):
        return Reason(f"{meant.name} is a super stream", _advice(meant))
    return None


def _of_super_command(error: StoreError) -> Reason | None:
    if error.code is Code.STREAM_NOT_FOUND:
        advice = (
            "`bottomless super ls` shows the super streams, `bottomless super create` makes one"
        )
        return Reason("there is no such super stream", advice)
    if error.code is Code.STREAM_EXISTS:
        return Reason(
            "a super stream or stream of this name exists, with another configuration or other partitions",
            "`bottomless super update` changes its configuration, `bottomless super grow` gives it "
            "more partitions; or take another name",
        )
    return None


def _of_queue_command(meant: _Meant, error: StoreError) -> Reason | None:
    if error.code is Code.QUEUE_NOT_FOUND:
        # It is another one where a publish or a redrive names more than the one.
        return Reason(f"there is no queue {error.facts.get('queue', meant.name)}", NO_QUEUE)
    if error.code is Code.VALIDATION_FAILED and meant.command in (
        f"{_QUEUE} create",
        f"{_QUEUE} update",
    ):
        told = tuple(map(_of_option, error.faults))
        missing = any(fault.code == Code.STREAM_NOT_FOUND for fault in error.faults)
        return Reason(error.message, NO_STREAM if missing else "correct it, then try again", told)
    return None


def _of_option(fault: Fault) -> str:
    """What is wrong with a member of a queue's configuration, said of the option that gave it."""
    option = f"--{(fault.pointer or '').strip('/').replace('_', '-').replace('/', '-')}"
    # Of the two that have two parts the one has no second kind.
    option = option.replace("--archive-stream", "--archive")
    detail = fault.detail.partition(OVER_HTTP)[0]
    return f"{option}: {_NO_TARGET if fault.code == 'missing-dead-letter' else detail}"


def _advice(meant: _Meant) -> str:
    command = _OF_SUPER_STREAMS.get(meant.command)
    if command is not None:
        return f"use `bottomless {command} {meant.name}`"
    return f"name one of its partitions, which `bottomless super describe {meant.name}` shows"


def _is_super(context: Any, name: str) -> bool:
    # Here and not above: they are needed after a failure only.
    from bottomless.cli.session import open_client  # noqa: PLC0415
    from bottomless.cli.super_names import is_super_stream  # noqa: PLC0415

    with suppress(StoreError), open_client(context, seconds=_SECONDS_MAX) as client:
        return is_super_stream(client, name)
    return False
