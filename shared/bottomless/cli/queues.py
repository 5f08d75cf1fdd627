"""Queues: create, list, describe, change, empty and delete them."""

from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from bottomless.cli import queue_messages, queue_publish, queue_work
from bottomless.cli.asking import Yes, confirm
from bottomless.cli.examples import examples
from bottomless.cli.failures import tell
from bottomless.cli.output import Column, Form, Output, line, show, show_list
from bottomless.cli.queue_config import taking_queue_config
from bottomless.cli.queue_names import Queue, checked_queue, complete_queue
from bottomless.cli.session import open_client

_COLUMNS: Final = [
    Column("NAME", lambda item: item["name"]),
    Column("READY", lambda item: item["ready"]),
    Column("IN FLIGHT", lambda item: item["in_flight"]),
    Column("DELAYED", lambda item: item["delayed"]),
    Column("BYTES", lambda item: item["bytes"]),
    Column("OLDEST", lambda item: item["oldest_published_at"]),
]


class _Purged(StrEnum):
    ALL = "all"
    DAMAGED = "damaged"


def add_to(app: typer.Typer) -> None:
    """Add `queue` with its commands to the command line."""
    group = typer.Typer(
        help="Queues: each message goes to one consumer, which acknowledges it.",
        no_args_is_help=True,
    )
    group.command(
        "create",
        epilog=examples(
            "queue create invoices --visibility-ms 2m",
            "queue create jobs --max-deliveries 5 --dead-letter-queue failed",
        ),
    )(_create)
    group.command("ls", epilog=examples("queue ls", "queue ls inv -o name"))(_list)
    group.command(
        "describe", epilog=examples("queue describe invoices", "queue describe invoices -o json")
    )(_describe)
    group.command(
        "update",
        epilog=examples(
            "queue update invoices --visibility-ms 5m", "queue update invoices --archive default"
        ),
    )(_update)
    group.command("rm", epilog=examples("queue rm invoices", "queue rm invoices --if-empty"))(
        _remove
    )
    queue_publish.add_to(group)
    queue_messages.add_to(group)
    group.command(
        "purge", epilog=examples("queue purge invoices", "queue purge invoices --state damaged")
    )(_purge)
    group.command(
        "redrive",
        epilog=examples(
            "queue redrive invoices-failed", "queue redrive invoices-failed --to invoices-slow"
        ),
    )(_redrive)
    queue_work.add_to(group)
    app.add_typer(group, name="queue")


@taking_queue_config
def _create(
    context: typer.Context, queue: Queue, config: dict[str, Any], output: Output = Form.TABLE
) -> None:
    """Create a queue; repeating it with the same options changes nothing."""
    with open_client(context) as client:
        _tell(client.create_queue(queue, config), output)


def _list(
    context: typer.Context,
    prefix: Annotated[str, typer.Argument(help="Only names that start with this.")] = "",
    output: Output = Form.TABLE,
) -> None:
    """List queues, and how many messages are in each."""
    with open_client(context) as client:
        show_list(client.queues(prefix=prefix), _COLUMNS, output)


def _describe(context: typer.Context, queue: Queue, output: Output = Form.TABLE) -> None:
    """Describe a queue, and what is in it at this moment."""
    with open_client(context) as client:
        show(client.queue(queue), output, name=queue)


@taking_queue_config
def _update(
    context: typer.Context, queue: Queue, config: dict[str, Any], output: Output = Form.TABLE
) -> None:
    """Change a queue's configuration; what is not named stays as it is.

    It counts for what happens from then on. `default` takes an option back.
    """
    if not config:
        raise typer.BadParameter("name what is to be changed: see --help")
    with open_client(context) as client:
        _tell(client.update_queue(queue, config), output)


def _remove(
    context: typer.Context,
    queue: Queue,
    if_empty: Annotated[
        bool, typer.Option("--if-empty", help="Only if it has no message; that is not asked about.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete a queue with all that is in it, in flight too."""
    with open_client(context) as client:
        if not (yes or if_empty):
            confirm(f"Delete {queue} with {_count(client.queue(queue))}?", yes)
        client.delete_queue(queue, if_empty=if_empty)


def _purge(
    context: typer.Context,
    queue: Queue,
    state: Annotated[_Purged, typer.Option(help="Which messages.")] = _Purged.ALL,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """Remove all messages of a queue, in flight too."""
    with open_client(context) as client:
        if not yes:
            confirm(f"Remove messages of {queue}, which has {_count(client.queue(queue))}?", yes)
        purged = client.purge_queue(queue, state=state.value)
    if output is Form.TABLE:
        line(f"removed {messages(purged)}")
    else:
        show({"purged": purged}, output, name=queue)


def _redrive(
    context: typer.Context,
    queue: Queue,
    to: Annotated[
        str | None,
        typer.Option(
            help="The queue where all of them go; default: where each came from.",
            callback=checked_queue,
            autocompletion=complete_queue,
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="So many at most.")] = 1000,
    output: Output = Form.TABLE,
) -> None:
    """Publish dead letters anew, the oldest ready ones; they are gone from here."""
    with open_client(context) as client:
        redriven = client.redrive(queue, limit=limit, to=to)
    if output is Form.TABLE:
        line(f"moved {messages(redriven.moved)}, {redriven.left} left")
        if to is None and redriven.left and not redriven.moved:
            tell(
                "what is left came from no other queue; with --to it goes to the queue named there"
            )
    else:
        show({"moved": redriven.moved, "left": redriven.left}, output, name=queue)


def messages(count: int) -> str:
    """Say how many messages."""
    return "1 message" if count == 1 else f"{count} messages"


def _count(described: dict[str, Any]) -> str:
    states = ("ready", "in_flight", "delayed", "damaged")
    return messages(sum(described[state] for state in states))


def _tell(described: dict[str, Any], output: Form) -> None:
    if output is Form.TABLE:
        line(f"{described['name']} {described['queue_id']}")
    else:
        show(described, output, name=described["name"])
