"""Replicas: the nodes that hold a stream, and which of them is its owner."""

import re
from typing import Annotated, Any, Final

import typer

from bottomless.cli.examples import examples
from bottomless.cli.failures import tell
from bottomless.cli.operations import Wait, finish
from bottomless.cli.output import Column, Form, Output, line, show_list
from bottomless.cli.session import open_client
from bottomless.cli.stream_names import Stream
from bottomless.errors import Code, InvalidRequest
from bottomless.model.limits import REPLICA_COUNT_MAX

_NODE: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)

_COLUMNS: Final = [
    Column("NODE", lambda item: item["node"]),
    Column("ROLE", lambda item: item["role"]),
    Column("IN SYNC", lambda item: "yes" if item["in_sync"] else "no"),
    Column("EPOCH", lambda item: _number(item["epoch"])),
    Column("NEXT OFFSET", lambda item: _number(item["next_offset"])),
    Column("LAG", lambda item: _number(item["lag"])),
    Column("DISK", lambda item: "failing" if item["failing"] else ""),
    Column("ZONE", lambda item: item["zone"] or ""),
]


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _checked_node(text: str) -> str:
    if not _NODE.fullmatch(text):
        raise InvalidRequest(
            "the id of a node has 32 hexadecimal digits, as `bottomless nodes ls` shows it",
            code=Code.BAD_NAME,
        )
    return text


Node = Annotated[
    str,
    typer.Argument(
        metavar="NODE", help="Id of a node, as `nodes ls` shows it.", callback=_checked_node
    ),
]


Replicas = Annotated[
    int | None,
    typer.Option(
        min=1, max=REPLICA_COUNT_MAX, help="How many nodes hold it, the owner included: 1 to 9."
    ),
]


MinInSync = Annotated[
    str | None,
    typer.Option(
        metavar="COUNT",
        help="How many of them must have a record before it is acknowledged; default: more than half.",
    ),
]


def with_replicas(
    config: dict[str, Any], replicas: int | None, min_in_sync: str | None
) -> dict[str, Any]:
    """Add what the options `--replicas` and `--min-in-sync` say to a configuration; without them nothing.

    Raises:
        typer.BadParameter: the second is neither a number nor `default`.
    """
    said: dict[str, Any] = {} if replicas is None else {"replicas": replicas}
    if min_in_sync is not None:
        said["min_in_sync"] = None if min_in_sync == "default" else _count_in(min_in_sync)
    return {**config, "replication": said} if said else config


def _count_in(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= REPLICA_COUNT_MAX:
        return int(text)
    raise typer.BadParameter(
        f"a number from 1 to {REPLICA_COUNT_MAX}, or default", param_hint="--min-in-sync"
    )


def add_to(app: typer.Typer) -> None:
    """Add `replicas` with its commands to the command line."""
    group = typer.Typer(help="The nodes that hold a stream.", no_args_is_help=True)
    group.command("status", epilog=examples("replicas status orders"))(_status)
    group.command(
        "move", epilog=examples("replicas move orders 0198d2a45b1e7c3a9a510f7e6f0d2c11 --wait")
    )(_move)
    group.command(
        "add", epilog=examples("replicas add orders 0198d2a45b1e7c3a9a510f7e6f0d2c11 --wait")
    )(_add)
    group.command("rm", epilog=examples("replicas rm orders 0198d2a45b1e7c3a9a510f7e6f0d2c11"))(
        _remove
    )
    app.add_typer(group, name="replicas")


def _status(context: typer.Context, stream: Stream, output: Output = Form.TABLE) -> None:
    """List the nodes that hold a stream, the owner first, and say which have everything."""
    with open_client(context) as client:
        told = client.replicas(stream)
    nodes = told["nodes"]
    if output is not Form.TABLE:
        show_list(nodes, _COLUMNS, output)
    elif not nodes:
        line("no node holds it now: its nodes are chosen with its next append")
    else:
        show_list(nodes, _COLUMNS, output)
        for one in nodes:
            # An older release says nothing of it.
            if one.get("stalled", False):
                tell(
                    f"{one['node']} lives and does not catch up: look at its log and its disk, and at the "
                    "way to it. Another node takes its place by itself, where one lives that may be chosen"
                )
        if len(nodes) < told["replicas"]:
            tell(
                f"{len(nodes)} of {told['replicas']} nodes hold it, and no other one has been taken "
                "in yet: `bottomless nodes ls` shows which live and are not emptied"
            )


def _move(
    context: typer.Context,
    stream: Stream,
    node: Node,
    wait: Wait = False,
    output: Output = Form.TABLE,
) -> None:
    """Have another node own a stream that it holds; producers notice a short pause."""
    with open_client(context) as client:
        finish(client, client.change_owner(stream, node), output, wait=wait)


def _add(
    context: typer.Context,
    stream: Stream,
    node: Node,
    wait: Wait = False,
    output: Output = Form.TABLE,
) -> None:
    """Have another node hold a stream; with --wait until it has everything."""
    with open_client(context) as client:
        finish(client, client.add_replica(stream, node), output, wait=wait)


def _remove(
    context: typer.Context,
    stream: Stream,
    node: Node,
    wait: Wait = False,
    output: Output = Form.TABLE,
) -> None:
    """Have a node hold a stream no more, whether it lives or not."""
    with open_client(context) as client:
        finish(client, client.remove_replica(stream, node), output, wait=wait)
