"""Retention and trim: what is removed, shown before it is removed."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bottomless.cli.asking import DryRun, Yes, confirm
from bottomless.cli.examples import examples
from bottomless.cli.operations import Wait, finish
from bottomless.cli.output import Form, Output, show
from bottomless.cli.session import open_client
from bottomless.cli.stream_config import MaxAge, MaxBytes, retention_of
from bottomless.cli.stream_names import Stream
from bottomless.errors import Code, InvalidRequest
from bottomless.model.limits import OFFSET_MAX

if TYPE_CHECKING:
    from bottomless.client import Client


def add_to(app: typer.Typer) -> None:
    """Add `retention` with its commands, and `trim`, to the command line."""
    group = typer.Typer(help="What a stream's limits remove.", no_args_is_help=True)
    group.command("preview", epilog=examples("retention preview orders --max-age 3D"))(_preview)
    group.command("apply", epilog=examples("retention apply orders --dry-run"))(_apply)
    app.add_typer(group, name="retention")
    app.command(
        "trim", epilog=examples("trim orders 1040 --dry-run", "trim orders 1040 --yes --wait")
    )(_trim)


def _preview(
    context: typer.Context,
    stream: Stream,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    output: Output = Form.TABLE,
) -> None:
    """Show what retention would remove now, and which consumers would lose records."""
    limits = retention_of(max_age, max_bytes)
    with open_client(context) as client:
        show(client.preview_retention(stream, limits or None), output, name=stream)


def _apply(
    context: typer.Context,
    stream: Stream,
    yes: Yes = False,
    dry_run: DryRun = False,
    wait: Wait = False,
    output: Output = Form.TABLE,
) -> None:
    """Remove now what the stream's limits do not keep; otherwise a timer does it."""
    with open_client(context) as client:
        if dry_run:
            show(client.preview_retention(stream), output, name=stream)
            return
        if not yes:
            goes = client.preview_retention(stream)["would_delete"]
            confirm(
                f"Remove {goes['records']} records in {goes['fragments']} fragments of {stream}?",
                yes,
            )
        finish(client, client.evaluate_retention(stream), output, wait=wait)


def _trim(
    context: typer.Context,
    stream: Stream,
    before_offset: Annotated[
        int,
        typer.Argument(
            min=0, max=OFFSET_MAX + 1, help="Everything below this offset may be removed."
        ),
    ],
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Allow removing the last fragment, too.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    wait: Wait = False,
    output: Output = Form.TABLE,
) -> None:
    """Remove whole fragments below an offset: never more than that, perhaps less."""
    with open_client(context) as client:
        bounds = client.bounds(stream)
        if dry_run:
            would = _would_trim(client, stream, bounds, before_offset, allow_empty)
            show(would, output, name=stream)
            return
        if before_offset > bounds["next_offset"]:
            raise _beyond_end(bounds["next_offset"])
        confirm(f"Remove the records of {stream} below offset {before_offset}?", yes)
        try:
            accepted = client.trim(
                stream, before_offset, allow_empty=allow_empty, stream_id=bounds["stream_id"]
            )
        except InvalidRequest as error:
            if error.code is not Code.OFFSET_BEYOND_END:
                raise
            raise _not_stored_yet(client, stream, error.facts.get("published_next")) from error
        finish(client, accepted, output, wait=wait)


def _beyond_end(next_offset: int) -> InvalidRequest:
    return InvalidRequest(
        "the stream ends before that offset, and at most all that it has can be trimmed",
        code=Code.OFFSET_BEYOND_END,
        facts={"next_offset": next_offset},
    )


def _not_stored_yet(client: "Client", stream: str, published_next: object) -> InvalidRequest:
    """What passes by itself, and within which time."""
    fragment = client.describe(stream).get("fragment") or {}
    return InvalidRequest(
        "only what is in the object store can be trimmed, and not all below that offset is there "
        "yet; it comes there within max_age_ms",
        code=Code.OFFSET_BEYOND_END,
        retryable=True,
        facts={"published_next": published_next, "max_age_ms": fragment.get("max_age_ms")},
    )


def _would_trim(
    client: "Client",
    stream: str,
    bounds: dict[str, Any],
    before_offset: int,
    allow_empty: bool,
) -> dict[str, Any]:
    """Where the trim would end: at the start of the fragment that holds the offset.

    Where the stream begins now is asked of who trims: readers learn of a trim a moment later.
    """
    first = max(bounds["first_offset"], client.describe(stream)["offsets"]["first"])
    end = bounds["object_store_next_offset"]
    if before_offset > bounds["next_offset"]:
        raise _beyond_end(bounds["next_offset"])
    if before_offset > end:
        raise _not_stored_yet(client, stream, end)
    effective = before_offset
    if first < before_offset and not (before_offset == end and allow_empty):
        # The last fragment stays, so the end counts as lying within it.
        held = min(before_offset, end - 1)
        query = {"from_offset": held, "to_offset": held + 1}
        effective = next(item["first_offset"] for item in client.list_fragments(stream, query))
    return {
        "first_offset": first,
        "before_offset": before_offset,
        "effective_before_offset": effective,
        "would_remove_offsets": max(effective - first, 0),
    }
