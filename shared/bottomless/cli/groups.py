"""Groups: programs that share a stream, which of them reads it, and how far they have come."""

from typing import Annotated, Any, Final

import typer

from bottomless.cli.asking import Yes, confirm
from bottomless.cli.examples import examples
from bottomless.cli.output import Column, Form, Output, show, show_list, tell_unreadable
from bottomless.cli.session import open_client
from bottomless.cli.stream_names import Stream, checked_reference

_COLUMNS: Final = [
    Column("GROUP", lambda item: item["group"]),
    Column("MEMBERS", lambda item: item["member_count"]),
    Column("PARTITIONS", lambda item: item["partition_count"]),
    Column("STRATEGY", lambda item: item["strategy"]),
    Column("CREATED", lambda item: item["created_at"]),
]
_PARTITIONS: Final = [
    Column("PARTITION", lambda item: item["partition"]),
    Column("STREAM", lambda item: item["stream"]),
    Column("MEMBER", lambda item: item["member"]),
    Column("FOLLOWING", lambda item: item["following"]),
    Column("GENERATION", lambda item: item["generation"]),
    Column("NEXT OFFSET", lambda item: item["next_offset"]),
    Column("LAG", lambda item: item["lag_records"]),
    Column("SECONDS", lambda item: item.get("lag_seconds")),
    Column("BYTES", lambda item: item.get("lag_bytes")),
]

Group = Annotated[
    str, typer.Argument(help="Name of the consumer group.", callback=checked_reference)
]


def add_to(app: typer.Typer) -> None:
    """Add `groups` with its commands to the command line."""
    group = typer.Typer(help="Consumer groups: programs that share a stream.", no_args_is_help=True)
    group.command("ls", epilog=examples("groups ls orders"))(_list)
    group.command(
        "describe",
        epilog=examples("groups describe orders billing", "groups describe orders billing -o json"),
    )(_describe)
    group.command("activate", epilog=examples("groups activate orders billing pod-b"))(_activate)
    group.command("rm", epilog=examples("groups rm orders billing"))(_remove)
    app.add_typer(group, name="groups")


def _list(context: typer.Context, stream: Stream, output: Output = Form.TABLE) -> None:
    """List the consumer groups of a stream."""
    with open_client(context) as client:
        groups = client.list_groups(stream, unreadable=tell_unreadable("group"))
        show_list(groups, _COLUMNS, output)


def _describe(
    context: typer.Context, stream: Stream, group: Group, output: Output = Form.TABLE
) -> None:
    """Show who of a consumer group holds the stream, and how far it has come."""
    with open_client(context) as client:
        _show(client.describe_group(stream, group), output, group)


def _activate(
    context: typer.Context,
    stream: Stream,
    group: Group,
    member: Annotated[str, typer.Argument(help="Name of the member.", callback=checked_reference)],
    partition: Annotated[int, typer.Option(min=0, max=999, help="Number of the partition.")] = 0,
    output: Output = Form.TABLE,
) -> None:
    """Have a stream go to a member of a consumer group, once its holder has released it."""
    with open_client(context) as client:
        after = client.activate_member(stream, group, member, partition=partition)
        _show(after, output, group)


def _remove(context: typer.Context, stream: Stream, group: Group, yes: Yes = False) -> None:
    """Delete a consumer group that nobody is in."""
    confirm(f"Delete the consumer group {group} of {stream}?", yes)
    with open_client(context) as client:
        client.delete_group(stream, group)


def _show(described: dict[str, Any], output: Form, group: str) -> None:
    if output is Form.TABLE:
        show_list(iter(described["partitions"]), _PARTITIONS, output)
    else:
        show(described, output, name=group)
