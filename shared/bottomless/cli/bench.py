"""Bench: a bounded load on a stream of its own, and how fast it went.

What is measured is this program, the network and the server together, not the server alone. So it
says how busy this program was, too.
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bottomless.cli.examples import examples
from bottomless.cli.failures import tell
from bottomless.cli.measures import Bounds, Load, summary
from bottomless.cli.output import Form, Output, line, show
from bottomless.cli.session import open_async_client
from bottomless.cli.temporary import told_what_is_needed
from bottomless.model.limits import JSON_BODY_SIZE_MAX, JSON_RECORD_COUNT_MAX, MIB

if TYPE_CHECKING:
    from bottomless.client import AsyncClient

PREFIX: Final = "bench-"
"""The names of the streams that it makes begin with this; any that is left may be removed."""

_SECONDS_MAX: Final = 600
_RECORD_SIZE_MAX: Final = MIB
_SIZE_MAX: Final = 64 * 1024 * MIB
_WIDTH: Final = 79
_MEMBER_SIZE: Final = 16
"""What JSON adds to a value."""

MEASURED: Final = (
    "From the moment that a finished body is sent until the server says that it is durable, "
    "with as many requests under way as there are connections, each waiting for its answer; "
    "random values, which do not compress. Reading is one page after the other, as JSON that is "
    "decoded. This program, the network and the server share what was measured; where this "
    "program was busy most of the time, it was what limited."
)


@dataclass(frozen=True, slots=True)
class _Outcome:
    stream: str
    appends: Load
    reads: Load
    complete: bool
    """Everything that was acknowledged was read back."""


def add_to(app: typer.Typer) -> None:
    """Add `bench` to the command line."""
    app.command(
        "bench",
        epilog=examples(
            "bench",
            "bench --seconds 30 --connections 16 --record-bytes 1000",
            "bench -o json",
        ),
    )(_bench)


def _bench(
    context: typer.Context,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.1, max=_SECONDS_MAX, help="Time for appends, and the same again for reads."
        ),
    ] = 5.0,
    connections: Annotated[
        int, typer.Option(min=1, max=64, help="Appends that are under way at once.")
    ] = 4,
    record_bytes: Annotated[
        int, typer.Option(min=1, max=_RECORD_SIZE_MAX, help="Size of a value.")
    ] = 100,
    batch_count: Annotated[
        int, typer.Option(min=1, max=JSON_RECORD_COUNT_MAX, help="Records of a request.")
    ] = 100,
    max_bytes: Annotated[
        int, typer.Option(min=1, max=_SIZE_MAX, help="Bytes of values that are appended, at most.")
    ] = 1024 * MIB,
    output: Output = Form.TABLE,
) -> None:
    """Append to a new stream for some seconds, read it back, delete it, and say how fast that was.

    It loads the server that it is pointed at, and its disk and object store with up to
    --max-bytes; the objects go when the server's grace for deleted streams is over.
    """
    if batch_count * (record_bytes + _MEMBER_SIZE) > JSON_BODY_SIZE_MAX:
        raise typer.BadParameter("a request would be too large; take fewer or smaller records")
    bounds = Bounds(seconds, connections, record_bytes, batch_count, max_bytes)
    # Here and not above: help does not need it.
    import asyncio  # noqa: PLC0415

    outcome = asyncio.run(_run(context, bounds))
    report = {
        "stream": outcome.stream,
        "bounds": bounds._asdict(),
        "append": summary(outcome.appends),
        "read": {**summary(outcome.reads), "complete": outcome.complete},
        "measured": MEASURED,
    }
    if output is Form.TABLE:
        _write(report)
    else:
        show(report, output, name=outcome.stream)


async def _run(context: typer.Context, bounds: Bounds) -> _Outcome:
    from bottomless.cli.load import read_back, write  # noqa: PLC0415

    async with (
        open_async_client(context) as client,
        _temporary(client, f"{PREFIX}{secrets.token_hex(8)}") as stream,
    ):
        appends = await write(client, stream, bounds)
        reads = await read_back(client, stream, bounds, appends.record_count)
        return _Outcome(stream, appends, reads, reads.record_count == appends.record_count)


@asynccontextmanager
async def _temporary(client: "AsyncClient", stream: str) -> AsyncIterator[str]:
    """A stream for this run alone.

    Ctrl-C and errors remove it too. After a kill of this program it is there, and `ls bench-`
    shows it.
    """
    with told_what_is_needed(PREFIX):
        await client.create_stream(stream, {"labels": {"made-by": "bottomless bench"}})
    try:
        yield stream
    finally:
        try:
            await client.delete_stream(stream)
        except BaseException:
            tell(f"the stream {stream} is left; remove it with `bottomless rm {stream}`")
            raise


def _write(report: dict[str, Any]) -> None:
    bounds = report["bounds"]
    line(
        f"{bounds['connections']} connections, {bounds['batch_count']} records of "
        f"{bounds['record_bytes']} bytes a request; stream {report['stream']}, deleted"
    )
    for name in ("append", "read"):
        of = report[name]
        waits = of["milliseconds"]
        line("")
        line(
            f"{name:<7} {of['records_per_second']:,.0f} records/s, "
            f"{of['megabytes_per_second']:.1f} MB/s of values, "
            f"{of['requests_per_second']:,.0f} requests/s for {of['seconds']:.1f} s"
        )
        line("        ms: " + "  ".join(f"{title} {value:.1f}" for title, value in waits.items()))
        line(f"        this program was busy {of['busy_percent']:.0f} % of the time on one core")
        if of["refused"]:
            line(f"        {of['refused']} requests were refused for now, and not sent again")
    if not report["read"]["complete"]:
        line("")
        line("not all was read back: the time was over first")
    line("")
    for text in wrap(report["measured"], _WIDTH):
        line(text)
