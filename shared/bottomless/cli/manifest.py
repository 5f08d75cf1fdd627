"""Manifest: the tree of a stream's fragments, and whether it is correct."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from bottomless.cli.examples import examples
from bottomless.cli.failures import tell
from bottomless.cli.operations import finish
from bottomless.cli.output import Form, Output, line, show
from bottomless.cli.session import open_client
from bottomless.cli.stream_names import Stream


def add_to(app: typer.Typer) -> None:
    """Add `manifest` with its commands to the command line."""
    group = typer.Typer(help="The tree of a stream's fragments.", no_args_is_help=True)
    group.command("tree", epilog=examples("manifest tree orders --depth 2"))(_tree)
    group.command("verify", epilog=examples("manifest verify orders --checksums"))(_verify)
    app.add_typer(group, name="manifest")


def _tree(
    context: typer.Context,
    stream: Stream,
    depth: Annotated[int, typer.Option(min=1, max=8, help="Levels that are shown.")] = 1,
    group: Annotated[str | None, typer.Option(help="Only this group, by its id.")] = None,
    output: Output = Form.TABLE,
) -> None:
    """Show the tree that leads to a stream's fragments."""
    with open_client(context) as client:
        found = client.manifest(stream, depth=depth, group=group)
    if output is not Form.TABLE:
        show(found, output, name=stream)
        return
    above = {name: value for name, value in found.items() if name != "entries"}
    show(above, output, name=stream)
    for text in _branches(found["entries"], 0):
        line(text)


def _verify(
    context: typer.Context,
    stream: Stream,
    checksums: Annotated[
        bool, typer.Option("--checksums", help="Read every fragment and check its bytes too.")
    ] = False,
    wait: Annotated[
        bool, typer.Option(help="Wait for the report; exits with 1 if it has faults.")
    ] = True,
    output: Output = Form.TABLE,
) -> None:
    """Check the tree and everything that it names."""
    with open_client(context) as client:
        accepted = client.verify_manifest(stream, checksums=checksums)
        report = finish(client, accepted, output, wait=wait)
    if report is not None and not report["sound"]:
        count = report["fault_count"]
        what = "1 fault" if count == 1 else f"{count} faults"
        tell(f"{stream} has {what}: docs/runbooks.md says under Verifying a stream what each means")
        raise typer.Exit(1)


def _branches(entries: list[Mapping[str, Any]], level: int) -> Iterator[str]:
    for entry in entries:
        offsets = f"{entry['first_offset']}..{entry['last_offset']}"
        sums = [
            f"{entry[name]} {name}" for name in ("fragments", "records", "bytes") if name in entry
        ]
        named = [str(entry[name]) for name in ("drive", "id", "reason") if entry.get(name)]
        yield "  ".join([f"{'  ' * level}{entry['kind']}", offsets, *sums, *named])
        yield from _branches(entry.get("entries") or [], level + 1)
