"""Streams as a whole: create, list, describe, update, remove."""

from typing import Annotated, Any, Final

import typer

from bottomless.cli.asking import DryRun, Yes, confirm
from bottomless.cli.examples import examples
from bottomless.cli.inventory import last_age_of, records_of, stored_size_of, with_bounds
from bottomless.cli.meant import note_stream
from bottomless.cli.operations import Wait, finish
from bottomless.cli.output import Column, Form, Output, line, show, show_list, tell_unreadable
from bottomless.cli.replicas import MinInSync, Replicas, with_replicas
from bottomless.cli.session import open_client
from bottomless.cli.stream_config import taking_config
from bottomless.cli.stream_names import Stream, complete_stream
from bottomless.cli.tiers import show_bars
from bottomless.cli.tiers_option import Tiers, with_tiers
from bottomless.cli.update_all import Manner, update_all

_NAME: Final = Column("NAME", lambda item: item["name"])
_COLUMNS: Final = [
    _NAME,
    Column("RECORDS", records_of),
    Column("STORED", stored_size_of),
    Column("LAST", last_age_of),
]
_MORE_COLUMNS: Final = [
    Column("ID", lambda item: item["stream_id"]),
    Column("MAX AGE", lambda item: item["retention"].get("max_age")),
    Column("MAX BYTES", lambda item: item["retention"].get("max_bytes")),
    Column("CREATED", lambda item: item["created_at"]),
    Column("PROFILE", lambda item: item.get("profile")),
]

_Etag = Annotated[str | None, typer.Option(help="Do it only if `describe` still shows this etag.")]


def add_to(app: typer.Typer) -> None:
    """Add `create`, `ls`, `describe`, `update`, `fence`, `unfence` and `rm` to the command line."""
    app.command(
        "create",
        epilog=examples(
            "create orders",
            "create orders --max-age 7D --label team=shop",
            "create sensors-17 --leaderless",
            "create orders --tiers default:bytes=10GB,cold",
            "create orders --replicas 3 --min-in-sync 2",
        ),
    )(_create)
    app.command("ls", epilog=examples("ls", "ls ord -o name", "ls --long", "ls --deleting"))(_list)
    app.command("describe", epilog=examples("describe orders", "describe orders -o json"))(
        _describe
    )
    app.command(
        "update",
        epilog=examples(
            "update orders --max-bytes 20000000000",
            "update orders --max-age default",
            "update orders --tiers default:age=7d,cold",
            "update --prefix orders- --max-age 7d --dry-run",
        ),
    )(_update)
    app.command("fence", epilog=examples("fence orders"))(_fence)
    app.command("unfence", epilog=examples("unfence orders"))(_unfence)
    app.command("rm", epilog=examples("rm orders --dry-run", "rm orders --yes --wait"))(_remove)


@taking_config
def _create(
    context: typer.Context,
    stream: Stream,
    config: dict[str, Any],
    leaderless: Annotated[
        bool,
        typer.Option(
            "--leaderless",
            help="No node owns it: records are stored when object storage has them. For good.",
        ),
    ] = False,
    tiers: Tiers = None,
    replicas: Replicas = None,
    min_in_sync: MinInSync = None,
    output: Output = Form.TABLE,
) -> None:
    """Create a stream; repeating it with the same options changes nothing."""
    config = with_replicas(with_tiers(config, tiers), replicas, min_in_sync)
    if leaderless:
        config = {"profile": "leaderless", **config}
    with open_client(context) as client:
        created = client.create_stream(stream, config)
    if output is Form.TABLE:
        line(f"{created['name']} {created['stream_id']}")
    else:
        show(created, output, name=created["name"])


def _list(
    context: typer.Context,
    prefix: Annotated[str, typer.Argument(help="Only names that start with this.")] = "",
    deleting: Annotated[
        bool, typer.Option("--deleting", help="List streams that are being deleted.")
    ] = False,
    long: Annotated[
        bool,
        typer.Option(
            "--long", "-l", help="In a table: show ids, limits, time of creation and profile too."
        ),
    ] = False,
    output: Output = Form.TABLE,
) -> None:
    """List streams.

    Of each: its records, the bytes of it that object storage holds, and how long ago the last
    record came. As JSON or names they come without these, at once.
    """
    with open_client(context) as client:
        state = "deleting" if deleting else "active"
        streams = client.list_streams(
            prefix=prefix, state=state, unreadable=tell_unreadable("name")
        )
        if output is not Form.TABLE:
            show_list(streams, [_NAME], output)
        elif deleting:
            show_list(streams, [_NAME, *_MORE_COLUMNS], output)
        else:
            columns = [*_COLUMNS, *(_MORE_COLUMNS if long else ())]
            show_list(with_bounds(client, streams), columns, output)


def _describe(context: typer.Context, stream: Stream, output: Output = Form.TABLE) -> None:
    """Describe a stream."""
    with open_client(context) as client:
        described = client.describe(stream)
        show(described, output, name=stream)
        if output is Form.TABLE and described.get("tiers"):
            show_bars(client.tiers(stream))


@taking_config
def _update(
    context: typer.Context,
    config: dict[str, Any],
    stream: Annotated[
        str | None,
        typer.Argument(
            help="Name of the stream.", callback=note_stream, autocompletion=complete_stream
        ),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(help="Change every stream whose name starts with this, instead of one."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --prefix: show the streams, change nothing.")
    ] = False,
    yes: Yes = False,
    if_match: _Etag = None,
    tiers: Tiers = None,
    replicas: Replicas = None,
    min_in_sync: MinInSync = None,
    output: Output = Form.TABLE,
) -> None:
    """Change the configuration of a stream, or of all with a prefix.

    Options that are not named stay. With --prefix streams are changed one after the other; one that
    is created later is not.
    """
    config = with_replicas(with_tiers(config, tiers), replicas, min_in_sync)
    if not config:
        raise typer.BadParameter("nothing to change is named")
    if (stream is None) is (prefix is None):
        raise typer.BadParameter("name a stream, or --prefix")
    if prefix is not None:
        if if_match is not None:
            raise typer.BadParameter("goes with one stream", param_hint="--if-match")
        update_all(context, prefix, config, Manner(dry_run=dry_run, yes=yes, output=output))
        return
    if dry_run:
        raise typer.BadParameter("goes with --prefix", param_hint="--dry-run")
    assert stream is not None
    with open_client(context) as client:
        show(client.update_stream(stream, config, etag=if_match or "*"), output, name=stream)


def _fence(context: typer.Context, stream: Stream, output: Output = Form.TABLE) -> None:
    """Stop the appends to a leaderless stream; what it holds can be read as before.

    When the command ends, no node stores anything any more: producers are told stream-fenced.
    """
    with open_client(context) as client:
        show(client.fence(stream), output, name=stream)


def _unfence(context: typer.Context, stream: Stream, output: Output = Form.TABLE) -> None:
    """Let a leaderless stream take appends again."""
    with open_client(context) as client:
        show(client.unfence(stream), output, name=stream)


def _remove(
    context: typer.Context,
    stream: Stream,
    yes: Yes = False,
    dry_run: DryRun = False,
    if_match: _Etag = None,
    wait: Wait = False,
    output: Output = Form.TABLE,
) -> None:
    """Delete a stream with all its records; the operation that is shown sweeps its objects.

    The name is free at once. The objects stay for the grace that the server gives to those who
    still read, an hour by default; with --wait the command says until when, and waits for it.
    """
    with open_client(context) as client:
        if dry_run or not yes:
            found = client.describe(stream)
            if dry_run:
                _tell_what_would_go(found, output)
                return
            confirm(f"Delete {_summary(found)}?", yes)
            # What was confirmed is this very stream, not a later one of its name.
            if_match = if_match or found["etag"]
        finish(client, client.delete_stream(stream, etag=if_match), output, wait=wait)


def _tell_what_would_go(found: dict[str, Any], output: Form) -> None:
    if output is Form.TABLE:
        line(f"would delete {_summary(found)}")
    else:
        show({"would_delete": found}, output, name=found["name"])


def _summary(found: dict[str, Any]) -> str:
    size = f"{found['fragment_count']} fragments of {found['size_bytes']} bytes"
    offsets = f"offsets {found['offsets']['first']} to {found['offsets']['next']}"
    return f"{found['name']} ({found['stream_id']}), {offsets}, {size}"
