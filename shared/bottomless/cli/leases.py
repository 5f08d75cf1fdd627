"""Leases: protect a range from deletion while something reads it, a copy for example."""

from typing import Annotated, Final

import typer

from bottomless.cli.examples import examples
from bottomless.cli.output import Form, Output, show
from bottomless.cli.session import open_client
from bottomless.cli.stream_names import Stream
from bottomless.model.limits import OFFSET_MAX

_HOLDER: Final = "bottomless leases"

_LeaseId = Annotated[str, typer.Argument(help="The id of the lease, as `leases take` showed it.")]
_Ttl = Annotated[
    str | None,
    typer.Option(help="How long the lease lasts: 90m, 1D, PT1H; else the server's default."),
]


def add_to(app: typer.Typer) -> None:
    """Add `leases` with its commands to the command line."""
    group = typer.Typer(help="Protect a range of a stream from deletion.", no_args_is_help=True)
    group.command("take", epilog=examples("leases take orders 1040 --ttl 1D"))(_take)
    group.command("renew", epilog=examples("leases renew orders 0198d2a45b1e --ttl 1D"))(_renew)
    group.command("rm", epilog=examples("leases rm orders 0198d2a45b1e"))(_remove)
    app.add_typer(group, name="leases")


def _take(
    context: typer.Context,
    stream: Stream,
    first_offset: Annotated[
        int,
        typer.Argument(
            min=0, max=OFFSET_MAX + 1, help="Everything from this offset on is protected."
        ),
    ],
    until: Annotated[
        int | None,
        typer.Option(min=0, max=OFFSET_MAX + 1, help="To before this; else to the stored end."),
    ] = None,
    ttl: _Ttl = None,
    holder: Annotated[str, typer.Option(help="The name of the holder.")] = _HOLDER,
    output: Output = Form.TABLE,
) -> None:
    """Keep what is stored from an offset on, whatever retention or trim remove meanwhile."""
    with open_client(context) as client:
        lease = client.take_lease(
            stream,
            first_offset,
            next_offset=until,
            ttl_seconds=_seconds(ttl),
            holder=holder,
        )
    show(lease, output, name=lease["lease_id"])


def _renew(
    context: typer.Context,
    stream: Stream,
    lease_id: _LeaseId,
    ttl: _Ttl = None,
    output: Output = Form.TABLE,
) -> None:
    """Let a lease expire later."""
    with open_client(context) as client:
        show(client.renew_lease(stream, lease_id, ttl_seconds=_seconds(ttl)), output, name=lease_id)


def _remove(context: typer.Context, stream: Stream, lease_id: _LeaseId) -> None:
    """End a lease: what it protected may be deleted."""
    with open_client(context) as client:
        client.return_lease(stream, lease_id)


def _seconds(ttl: str | None) -> int | None:
    from bottomless.model.duration import parse_duration  # noqa: PLC0415

    try:
        return None if ttl is None else parse_duration(ttl)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--ttl") from error
