"""Nodes: the ingest nodes that there are, one emptied, and streams spread over all."""

from typing import Annotated, Final

import typer

from bottomless.cli.asking import Yes, confirm
from bottomless.cli.examples import examples
from bottomless.cli.meant import note_name
from bottomless.cli.operations import Wait, finish
from bottomless.cli.output import Column, Form, Output, show_list
from bottomless.cli.session import open_client

_COLUMNS: Final = [
    Column("NODE", lambda item: item["node"]),
    Column("STATE", lambda item: item["state"]),
    Column("LEFT", lambda item: "" if item.get("left") is None else item["left"]),
    Column("URL", lambda item: item.get("url") or ""),
    Column("ZONE", lambda item: item["zone"] or ""),
    Column("RELEASE", lambda item: item["release"] or ""),
]


def add_to(app: typer.Typer) -> None:
    """Add `nodes` with its commands to the command line."""
    group = typer.Typer(help="The ingest nodes.", no_args_is_help=True)
    group.command("ls", epilog=examples("nodes ls"))(_list)
    group.command(
        "evacuate",
        epilog=examples("nodes evacuate 0198d2a45b1e7c3a9a510f7e6f0d2c11 --yes --wait"),
    )(_evacuate)
    group.command("rebalance", epilog=examples("nodes rebalance --wait"))(_rebalance)
    app.add_typer(group, name="nodes")


def _list(context: typer.Context, output: Output = Form.TABLE) -> None:
    """List the ingest nodes: those that live, are away, or are being emptied, with how many streams are left."""
    with open_client(context) as client:
        show_list(client.list_nodes(), _COLUMNS, output)


def _evacuate(
    context: typer.Context,
    node: Annotated[
        str,
        typer.Argument(
            metavar="NODE", help="Id of a node, as `nodes ls` shows it.", callback=note_name
        ),
    ],
    yes: Yes = False,
    wait: Wait = False,
    output: Output = Form.TABLE,
) -> None:
    """Have other nodes hold all that a node holds of streams.

    Nothing is put on it any more until it stops. `operations show` says which streams are left, and why.
    """
    confirm(f"Have other nodes hold all that {node} holds?", yes)
    with open_client(context) as client:
        finish(client, client.evacuate_node(node), output, wait=wait)


def _rebalance(context: typer.Context, wait: Wait = False, output: Output = Form.TABLE) -> None:
    """Spread the streams with replicas over the nodes that live, each by one step."""
    with open_client(context) as client:
        finish(client, client.rebalance_nodes(), output, wait=wait)
