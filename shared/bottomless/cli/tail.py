"""Tail: the last records, and with -f those that come, whatever happens to the server.

As a consumer it continues where that consumer has come to. What was written is committed
afterwards. So after a crash at any point the stored offset is that of the previous batch or of this
one: records may be written twice, and none is left out.
"""

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bottomless.cli.examples import examples
from bottomless.cli.failures import tell
from bottomless.cli.interrupts import Interrupted, interrupts
from bottomless.cli.outages import Outage
from bottomless.cli.outputs import FollowForm, Writer, writer_of
from bottomless.cli.places import checked_place
from bottomless.cli.read import Details, read_span, span_of, tell_gaps
from bottomless.cli.session import open_client
from bottomless.cli.stream_names import Stream, checked_reference
from bottomless.cli.super_names import is_super_stream
from bottomless.cli.super_tail import Asked, tail_super_stream
from bottomless.cli.wanted import FilterValues, Keys, MatchUnfiltered, RawKeys, wanted_of
from bottomless.errors import Code, NotFound, StoreError

if TYPE_CHECKING:
    from bottomless.client import Client
    from bottomless.client.parameters import Parameter


LEASE_SECONDS: Final = 30.0
"""How long others wait for a member that says nothing, unless something else is said."""


def add_to(app: typer.Typer) -> None:
    """Add `tail` to the command line."""
    app.command(
        "tail",
        epilog=examples(
            "tail orders -n 3",
            "tail -f orders",
            "tail -f orders --filter emea",
            "tail -f orders --consumer billing -o ndjson",
            "tail orders --group billing",
        ),
    )(_tail)


def _tail(
    context: typer.Context,
    stream: Stream,
    count: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="How many of the last records.")
    ] = 10,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Keep running, and write new records as they come."),
    ] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", callback=checked_place, help="Start here instead; a place as for `read`."
        ),
    ] = None,
    consumer: Annotated[
        str | None,
        typer.Option(
            help="Begin where this consumer has come to (the first time at --from, else at the "
            "first record), and store how far it comes.",
            callback=checked_reference,
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="Share the stream with others that say the same: one of them writes it at a time, "
            "and the next goes on when that one ends. Of a super stream each writes some of the "
            "partitions. Keeps running.",
            callback=checked_reference,
        ),
    ] = None,
    lease_seconds: Annotated[
        float | None,
        typer.Option(
            min=5, max=300, help="With --group: others go on after this long without a word of it."
        ),
    ] = None,
    filter_values: FilterValues = None,
    match_unfiltered: MatchUnfiltered = False,
    keys: Keys = None,
    raw_keys: RawKeys = None,
    details: Details = False,
    output: Annotated[
        FollowForm, typer.Option("--output", "-o", help="How to write records.")
    ] = FollowForm.TEXT,
) -> None:
    """Write the last records of a stream; with -f go on with those that are appended.

    With -f an outage of the server is waited out; then reading goes on at the very record
    where it was, without one twice and without one missing.
    """
    wanted = wanted_of(filter_values, keys, raw_keys, match_unfiltered=match_unfiltered)
    if group is not None and consumer is not None:
        raise typer.BadParameter("give one of --consumer and --group")
    if group is not None and wanted:
        raise typer.BadParameter("goes without --filter and --key", param_hint="--group")
    if lease_seconds is not None and group is None:
        raise typer.BadParameter("goes with --group", param_hint="--lease-seconds")
    asked = Asked(
        stream, count, start, consumer, group, wanted, follow=follow, lease_seconds=lease_seconds
    )
    writer = writer_of(output, details=details)
    try:
        _tail_stream(context, asked, writer)
    except NotFound as error:
        # A group is asked for by either name.
        if error.code is not Code.STREAM_NOT_FOUND or group is not None:
            raise
        with open_client(context) as client:
            if not is_super_stream(client, stream):
                raise
            tail_super_stream(client, asked, writer)


def _tail_stream(context: typer.Context, asked: Asked, writer: Writer) -> None:
    stream, start, consumer, wanted = asked.stream, asked.start, asked.consumer, asked.wanted
    if asked.group is not None:
        with open_client(context) as client:
            _share(client, asked, asked.group, writer)
        return
    if consumer is not None:
        with open_client(context) as client:
            query = {**wanted, "consumer": consumer, "default": start or "first"}
            _consume(client, stream, consumer, query, writer, follow=asked.follow)
        return
    spec = asked.spec
    if not asked.follow:
        with open_client(context) as client:
            span = span_of(client, stream, spec)._replace(wanted=wanted)
        with open_client(context, patient=True) as client:
            read_span(client, stream, span, writer)
        return
    with open_client(context) as client:
        outage = Outage()
        for batch in client.follow(
            stream, spec, on_outage=outage.note, value_encoding=writer.value_encoding, **wanted
        ):
            outage.over()
            tell_gaps(batch.gaps)
            writer.write(batch.records)
            # Now: whoever reads this pipe shall see what there is.
            sys.stdout.flush()


def _consume(
    client: "Client",
    stream: str,
    consumer: str,
    query: "dict[str, Parameter]",
    writer: Writer,
    *,
    follow: bool,
) -> None:
    if not follow:
        bounds = client.bounds(stream)
        query |= {"until_offset": bounds["next_offset"], "expect_stream_id": bounds["stream_id"]}
    passes_over = "filter" in query or "key" in query
    outage = Outage()
    for batch in client.follow(
        stream, "stored", on_outage=outage.note, value_encoding=writer.value_encoding, **query
    ):
        outage.over()
        tell_gaps(batch.gaps)
        writer.write(batch.records)
        # Whoever reads this pipe has it before it counts as processed.
        sys.stdout.flush()
        # One that is empty has come further past what was not asked for.
        if batch.records or batch.gaps or passes_over:
            try:
                client.commit(stream, consumer, batch.next_offset, stream_id=batch.stream_id)
            except StoreError as error:
                if not error.retryable:
                    raise
                # The next batch commits this one too.
                outage.note(error)


def _share(client: "Client", asked: Asked, group: str, writer: Writer) -> None:
    try:
        # SIGTERM too leaves the group: nobody has to wait for the lease of a service that was stopped.
        with interrupts():
            _share_until_interrupted(client, asked, group, writer)
    except Interrupted as interrupted:
        raise typer.Exit(interrupted.exit_code) from interrupted


def _share_until_interrupted(client: "Client", asked: Asked, group: str, writer: Writer) -> None:
    outage = Outage()
    start, seconds = asked.start or "first", asked.lease_seconds or LEASE_SECONDS
    with client.group(
        asked.stream, group, start=start, lease_seconds=seconds, on_outage=outage.note
    ) as member:
        tell(f"joined {group} as {member.member}")
        for batch in member:
            outage.over()
            tell_gaps(batch.gaps, batch.partition)
            writer.write(batch.records)
            # Whoever reads this pipe has it before it counts as processed.
            sys.stdout.flush()
            try:
                member.commit()
            except StoreError as error:
                # Another member holds the stream, or the next batch commits this one too.
                if not error.retryable and error.code != Code.CONSUMER_FENCED:
                    raise
                outage.note(error)
