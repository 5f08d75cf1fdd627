"""Work: run a command for each message of a queue.

The message is extended while the command runs, and acknowledged if it succeeds. The command is in a
process group of its own, so that Ctrl-C at the terminal ends the work and not the message in hand.
"""

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bottomless.cli.examples import examples
from bottomless.cli.failures import tell
from bottomless.cli.interrupts import Interrupted, interrupts
from bottomless.cli.queue_names import TIME, Queue, milliseconds
from bottomless.cli.session import open_client
from bottomless.errors import StoreError

if TYPE_CHECKING:
    from bottomless.client import HeldMessage, Message

_NOT_IN_NAME: Final = re.compile(r"[^A-Z0-9]+")
_HEADER_PREFIX: Final = "BOTTOMLESS_HEADER_"
"""So that no header can be what the command's own environment has, such as PATH."""
_EMPTY_SECONDS: Final = 1.0
_NO_COMMAND: Final = 1
_LOSSES: Final = {
    "stale": "was delivered to another consumer while the command ran",
    "gone": "left the queue while the command ran",
}


def add_to(group: typer.Typer) -> None:
    """Add `queue work` to the commands about queues."""
    group.command(
        "work",
        epilog=examples(
            "queue work invoices -- ./charge.sh",
            "queue work invoices --until-empty --nack-delay-ms 1m -- ./charge",
        ),
        # What follows the name of the command is the command's.
        context_settings={"allow_interspersed_args": True},
    )(_work)


def _work(
    context: typer.Context,
    queue: Queue,
    command: Annotated[
        list[str], typer.Argument(help="The command, after `--`, with its arguments.")
    ],
    visibility_ms: Annotated[
        str,
        typer.Option(help=f"After so long without a word from here others get it: {TIME}."),
    ] = "30s",
    nack_delay_ms: Annotated[
        str, typer.Option(help=f"How long a message waits whose command failed: {TIME}.")
    ] = "1s",
    count: Annotated[
        int | None, typer.Option(min=1, help="End after so many messages; default: go on.")
    ] = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when none is ready for a second.")
    ] = False,
) -> None:
    """Run a command for each message, one after the other.

    The command has the body on stdin, and in its environment BOTTOMLESS_QUEUE,
    BOTTOMLESS_MESSAGE_ID, _SEQUENCE, _DELIVERIES, _PRIORITY and _PUBLISHED_AT, and each header as
    BOTTOMLESS_HEADER_ with its name in capitals and _ for other characters. Exit 0 acknowledges the
    message, anything else gives it back. Ctrl-C ends the work after the message in hand, a second
    one ends that command too and gives its message back. Start as many of it as you like.
    """
    if shutil.which(command[0]) is None:
        # Before a message is taken: that would be one of the deliveries that its queue allows.
        tell(f"there is no command {command[0]} that can be run; no message was taken")
        raise typer.Exit(_NO_COMMAND)
    outages = _Outages()
    with (
        open_client(context, patient=True) as client,
        client.worker(
            queue,
            visibility_ms=milliseconds(visibility_ms, "--visibility-ms") or 0,
            nack_delay_ms=milliseconds(nack_delay_ms, "--nack-delay-ms") or 0,
            on_lost=_tell_lost,
            on_outage=outages.note,
        ) as worker,
    ):
        done = 0
        try:
            with interrupts() as taken:
                while count is None or done < count:
                    outages_before = outages.count
                    message = worker.poll(_EMPTY_SECONDS) if until_empty else next(worker)
                    if message is None:
                        if outages.count != outages_before:
                            # Nobody said that there is none.
                            continue
                        break
                    with taken.shielded("finishing the message in hand; again to give it back"):
                        _run(message, queue, command)
                    done += 1
        except Interrupted as interrupted:
            tell("interrupted: nothing is in hand any more")
            raise typer.Exit(interrupted.exit_code) from interrupted


def _run(message: "HeldMessage", queue: str, command: list[str]) -> None:
    with message:
        code = _exit_code(message, queue, command)
        if code == 0:
            return
        said = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
        if message.nack():
            tell(f"message {message.message_id}: {said}; it is given back")


def _exit_code(message: "HeldMessage", queue: str, command: list[str]) -> int:
    environment = {**os.environ, **variables_of(message, queue)}
    with subprocess.Popen(  # noqa: S603  # it is the user's own command
        command, stdin=subprocess.PIPE, env=environment, process_group=0
    ) as process:
        try:
            # What the command does not read is nothing that it has to.
            process.communicate(message.value)
        except BaseException:
            process.terminate()
            raise
        return process.returncode


def variables_of(message: "Message", queue: str) -> dict[str, str]:
    """Make what the environment of a command says about its message.

    Of two headers whose names become the same the first counts; one with a NUL cannot be there.
    """
    variables: dict[str, str] = {}
    for name, value in message.headers.items():
        variable = _HEADER_PREFIX + _NOT_IN_NAME.sub("_", name.upper())
        if value is not None and b"\0" not in value:
            variables.setdefault(variable, os.fsdecode(value))
    return {
        **variables,
        "BOTTOMLESS_QUEUE": queue,
        "BOTTOMLESS_MESSAGE_ID": message.message_id,
        "BOTTOMLESS_MESSAGE_SEQUENCE": str(message.sequence),
        "BOTTOMLESS_MESSAGE_DELIVERIES": str(message.deliveries),
        "BOTTOMLESS_MESSAGE_PRIORITY": str(message.priority),
        "BOTTOMLESS_MESSAGE_PUBLISHED_AT": message["published_at"],
    }


def _tell_lost(message: "Message", loss: str) -> None:
    tell(f"message {message.message_id} {_LOSSES[loss]}")


class _Outages:
    """Tells of times when the server did not answer, and counts them."""

    def __init__(self) -> None:
        self.count = 0
        self._told = ""

    def note(self, error: StoreError) -> None:
        """Note one; called from the thread of the client."""
        self.count += 1
        # Once for each reason, not once for each second.
        if error.summary != self._told:
            tell(f"{error.summary} ({error.code}); trying again")
        self._told = error.summary
