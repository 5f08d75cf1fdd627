"""Streams as a whole: create, list, describe, update, remove."""

import re
from typing import Annotated, Any, Final

import typer

from bottomless.cli.asking import DryRun, Yes, confirm
from bottomless.cli.operations import Wait, finish
from bottomless.cli.output import (
    Column,
    Form,
    ListForm,
    ListOutput,
    Output,
    line,
    show,
    show_list,
)
from bottomless.cli.session import open_client
from bottomless.model.limits import OFFSET_MAX

_COLUMNS: Final = [
    Column("NAME", lambda item: item["name"]),
    Column("ID", lambda item: item["stream_id"]),
    Column("MAX AGE", lambda item: item["retention"].get("max_age")),
    Column("MAX BYTES", lambda item: item["retention"].get("max_bytes")),
    Column("CREATED", lambda item: item["created_at"]),
]

_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
"""As many digits as a 64-bit integer surely takes."""

Stream = Annotated[str, typer.Argument(help="Name of the stream.")]
MaxAge = Annotated[
    str | None,
    typer.Option(help="How long records are kept: 7D, 90m, PT1H, unlimited, or default."),
]
MaxBytes = Annotated[
    str | None, typer.Option(help="How many bytes are kept: a number, unlimited, or default.")
]
_FragmentBytes = Annotated[int | None, typer.Option(max=OFFSET_MAX, help="Size of a fragment.")]
_FragmentAge = Annotated[
    int | None,
    typer.Option(
        max=OFFSET_MAX, help="How old what is in no fragment yet becomes, in milliseconds."
    ),
]
_Labels = Annotated[
    list[str] | None, typer.Option("--label", help="NAME=VALUE, or NAME= for none; repeatable.")
]
_Etag = Annotated[str | None, typer.Option(help="Only if `describe` still shows this etag.")]


def add_to(app: typer.Typer) -> None:
    app.command("create")(_create)
    app.command("ls")(_list)
    app.command("describe")(_describe)
    app.command("update")(_update)
    app.command("rm")(_remove)


def retention_of(max_age: str | None, max_bytes: str | None) -> dict[str, Any]:
    """The members that were given; `default` takes one back, as null does."""
    limits: dict[str, Any] = {}
    if max_age is not None:
        limits["max_age"] = None if max_age == "default" else max_age
    if max_bytes is not None:
        words: dict[str, Any] = {"default": None, "unlimited": "unlimited"}
        if max_bytes not in words and not _NUMBER.fullmatch(max_bytes):
            raise typer.BadParameter(
                "neither a number nor unlimited nor default", param_hint="--max-bytes"
            )
        limits["max_bytes"] = words[max_bytes] if max_bytes in words else int(max_bytes)
    return limits


def _create(
    context: typer.Context,
    stream: Stream,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    fragment_bytes: _FragmentBytes = None,
    fragment_age_ms: _FragmentAge = None,
    label: _Labels = None,
    output: Output = Form.TABLE,
) -> None:
    """Create a stream; the same again finds that it is there."""
    config = _config(max_age, max_bytes, fragment_bytes, fragment_age_ms, label)
    with open_client(context) as client:
        created = client.create_stream(stream, config)
    if output is Form.JSON:
        show(created, output)
    else:
        line(f"{created['name']} {created['stream_id']}")


def _list(
    context: typer.Context,
    prefix: Annotated[str, typer.Argument(help="Only names that start so.")] = "",
    deleting: Annotated[bool, typer.Option("--deleting", help="Those being deleted.")] = False,
    output: ListOutput = ListForm.TABLE,
) -> None:
    """List streams."""
    with open_client(context) as client:
        state = "deleting" if deleting else "active"
        show_list(client.list_streams(prefix=prefix, state=state), _COLUMNS, output)


def _describe(context: typer.Context, stream: Stream, output: Output = Form.TABLE) -> None:
    """Describe a stream."""
    with open_client(context) as client:
        show(client.describe(stream), output)


def _update(
    context: typer.Context,
    stream: Stream,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    fragment_bytes: _FragmentBytes = None,
    fragment_age_ms: _FragmentAge = None,
    label: _Labels = None,
    if_match: _Etag = None,
    output: Output = Form.TABLE,
) -> None:
    """Change a stream's configuration; what is not named stays."""
    patch = _config(max_age, max_bytes, fragment_bytes, fragment_age_ms, label)
    if not patch:
        raise typer.BadParameter("nothing to change is named")
    with open_client(context) as client:
        show(client.update_stream(stream, patch, etag=if_match or "*"), output)


def _remove(
    context: typer.Context,
    stream: Stream,
    yes: Yes = False,
    dry_run: DryRun = False,
    if_match: _Etag = None,
    wait: Wait = False,
    output: Output = Form.TABLE,
) -> None:
    """Delete a stream with all its records; the operation that is shown sweeps its objects."""
    with open_client(context) as client:
        if dry_run or not yes:
            found = client.describe(stream)
            size = f"{found['fragment_count']} fragments of {found['size_bytes']} bytes"
            offsets = f"offsets {found['offsets']['first']} to {found['offsets']['next']}"
            what = f"{stream} ({found['stream_id']}), {offsets}, {size}"
            if dry_run:
                line(f"would delete {what}")
                return
            confirm(f"Delete {what}?", yes)
            # What was confirmed is this very stream, not a later one of its name.
            if_match = if_match or found["etag"]
        finish(client, client.delete_stream(stream, etag=if_match), output, wait=wait)


def _config(
    max_age: str | None,
    max_bytes: str | None,
    fragment_bytes: int | None,
    fragment_age_ms: int | None,
    labels: list[str] | None,
) -> dict[str, Any]:
    fragment = {"target_bytes": fragment_bytes, "max_age_ms": fragment_age_ms}
    config = {
        "retention": retention_of(max_age, max_bytes),
        "fragment": {name: value for name, value in fragment.items() if value is not None},
        "labels": dict(map(_label, labels or [])),
    }
    return {name: value for name, value in config.items() if value}


def _label(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter("a label is NAME=VALUE", param_hint="--label")
    return name, value or None
