"""Fragments: the objects that hold a stream, and their bytes."""

import sys
from typing import Annotated, Final

import typer

from bottomless.cli.examples import examples
from bottomless.cli.output import Column, Form, Output, show_list, write
from bottomless.cli.session import open_client
from bottomless.cli.stream_names import Stream
from bottomless.model.limits import OFFSET_MAX

_COLUMNS: Final = [
    Column("FIRST", lambda item: item["first_offset"]),
    Column("LAST", lambda item: item["last_offset"]),
    Column("RECORDS", lambda item: item.get("record_count", 0)),
    Column("BYTES", lambda item: item.get("size_bytes", 0)),
    Column("FIRST TIME", lambda item: item.get("first_timestamp")),
    Column("ID", lambda item: item.get("id") or f"gap: {item['gap']}"),
]


def add_to(app: typer.Typer) -> None:
    """Add `fragments` with its commands to the command line."""
    group = typer.Typer(help="The objects that hold a stream.", no_args_is_help=True)
    group.command(
        "ls",
        epilog=examples("fragments ls orders", "fragments ls orders --from-offset 1040 -o name"),
    )(_list)
    group.command("cat", epilog=examples("fragments cat orders ID > fragment.bin"))(_cat)
    app.add_typer(group, name="fragments")


def _list(
    context: typer.Context,
    stream: Stream,
    from_offset: Annotated[
        int | None, typer.Option(min=0, max=OFFSET_MAX + 1, help="Those from here on.")
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option(min=0, max=OFFSET_MAX + 1, help="Those below.")
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """List fragments, gaps included; as names only fragments."""
    given = {"from_offset": from_offset, "to_offset": to_offset}
    query = {name: value for name, value in given.items() if value is not None}
    with open_client(context) as client:
        items = client.list_fragments(stream, query)
        if output is Form.NAME:
            items = (item for item in items if item.get("id"))
        show_list(items, _COLUMNS, output, name="id")


def _cat(
    context: typer.Context,
    stream: Stream,
    fragment_id: Annotated[
        str, typer.Argument(help="The id of the fragment, as `fragments ls` shows it.")
    ],
) -> None:
    """Write the bytes of a fragment to stdout, as they are stored."""
    if sys.stdout.isatty():
        raise typer.BadParameter("these are bytes: send them to a file or a pipe")
    with (
        open_client(context) as client,
        client.fragment_bytes(stream, fragment_id) as pieces,
    ):
        for piece in pieces:
            write(piece)
