"""Admin: what only an operator does: garbage collection, rebuilding, lost homes, WAL objects, nodes of queues."""

from typing import Annotated, Final

import typer

from bottomless.cli import queue_nodes, wal
from bottomless.cli.asking import DryRun, Yes, confirm
from bottomless.cli.examples import examples
from bottomless.cli.installed import installed
from bottomless.cli.operations import Wait, finish
from bottomless.cli.output import Form, Output
from bottomless.cli.session import open_client
from bottomless.cli.stream_names import Stream, checked_stream
from bottomless.model.limits import OFFSET_MAX

COMMANDS: Final = "bottomless.admin"
"""The group of commands that other distributions add: for who runs a server, `bottomless-server`."""


def add_to(app: typer.Typer) -> None:
    """Add `admin` with its commands to the command line."""
    group = typer.Typer(help="For operators.", no_args_is_help=True)
    group.command(
        "gc", epilog=examples("admin gc --dry-run", "admin gc --minimum-age 1D --yes --wait")
    )(_collect_garbage)
    group.command("rebuild", epilog=examples("admin rebuild --wait"))(_rebuild)
    group.command(
        "takeover",
        epilog=examples("admin takeover log --expect-home 0198d2a45b1e7c3a9a510f7e6f0d2c11"),
    )(_take_over)
    group.command("gap", epilog=examples("admin gap orders 1040 --wait"))(_accept_gap)
    wal.add_to(group)
    queue_nodes.add_to(group)
    for name, command in installed(COMMANDS):
        group.command(name)(command)
    app.add_typer(group, name="admin")


def _collect_garbage(
    context: typer.Context,
    stream: Annotated[
        str | None, typer.Option(help="Only this stream.", callback=checked_stream)
    ] = None,
    minimum_age: Annotated[
        str | None,
        typer.Option(
            help="Only objects that are at least this old: 1D, 6h; an hour or more without --dry-run."
        ),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    wait: Wait = False,
    output: Output = Form.TABLE,
) -> None:
    """Delete objects that nothing names any more; with --wait shows the report of orphans."""
    if not dry_run:
        confirm("Delete the objects that nothing names?", yes)
    with open_client(context) as client:
        accepted = client.collect_garbage(dry_run=dry_run, minimum_age=minimum_age, stream=stream)
        # What a dry run has to say is its report.
        finish(client, accepted, output, wait=wait or dry_run)


def _rebuild(
    context: typer.Context,
    yes: Yes = False,
    wait: Wait = False,
    output: Output = Form.TABLE,
) -> None:
    """Build coordination anew from the object store, after it was lost."""
    confirm("Build coordination anew from the object store?", yes)
    with open_client(context) as client:
        finish(client, client.rebuild(), output, wait=wait)


def _take_over(
    context: typer.Context,
    stream: Stream,
    expect_home: Annotated[str, typer.Option(help="Id of the data directory that is given up.")],
    node: Annotated[
        str | None,
        typer.Option(
            help="Id of a node that goes on with what it holds, without a gap. `replicas status` shows which holds most."
        ),
    ] = None,
    yes: Yes = False,
    wait: Wait = False,
    output: Output = Form.TABLE,
) -> None:
    """Free a stream from a home that will not come back; what only that held is lost."""
    kept = "" if node is None else f", and go on with what {node} holds"
    confirm(f"Give up what only {expect_home} holds of {stream}{kept}, for good?", yes)
    with open_client(context) as client:
        begun = client.take_over(stream, expect_home=expect_home, node=node)
        finish(client, begun, output, wait=wait)


def _accept_gap(
    context: typer.Context,
    stream: Stream,
    next_offset: Annotated[
        int,
        typer.Argument(
            min=1,
            max=OFFSET_MAX,
            help="First offset of the owner's log: `local_first_offset` in the error. Of a leaderless "
            "stream the end of the damaged entry: `damaged_next` in the error.",
        ),
    ],
    yes: Yes = False,
    wait: Wait = False,
    output: Output = Form.TABLE,
) -> None:
    """Give up records that cannot be had any more, so that those after them can.

    It is a hole between what is stored and the owner's log; of a leaderless stream a damaged entry.
    """
    confirm(f"Give up every record of {stream} before {next_offset} that is not stored?", yes)
    with open_client(context) as client:
        finish(client, client.accept_gap(stream, next_offset), output, wait=wait)
