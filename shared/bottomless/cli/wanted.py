"""Options of commands that read: which records are asked for, by filter value and key."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from bottomless.errors import InvalidRequest

if TYPE_CHECKING:
    from bottomless.client.parameters import Parameter

FilterValues = Annotated[
    list[str] | None,
    typer.Option("--filter", help="Only records with this filter value; several for any of them."),
]
MatchUnfiltered = Annotated[
    bool,
    typer.Option("--match-unfiltered", help="With --filter: also records without a filter value."),
]
Keys = Annotated[
    list[str] | None,
    typer.Option("--key", help="Only records with this key; several for any of them."),
]
RawKeys = Annotated[
    list[str] | None,
    typer.Option("--key-base64", help="As --key, for keys that are not text: their base64."),
]


def wanted_of(
    values: list[str] | None,
    keys: list[str] | None,
    raw_keys: list[str] | None,
    *,
    match_unfiltered: bool,
) -> "Mapping[str, Parameter]":
    """Make the parameters of a read; there are none where everything is asked for.

    Raises:
        BadParameter: `--match-unfiltered` stands without `--filter`, or a raw key is not base64.
    """
    if match_unfiltered and not values:
        raise typer.BadParameter("goes with --filter", param_hint="--match-unfiltered")
    wanted: dict[str, Parameter] = {}
    if values:
        wanted["filter"] = values
    if match_unfiltered:
        wanted["match_unfiltered"] = True
    if keys or raw_keys:
        wanted["key"] = [*(keys or ()), *map(_raw_key, raw_keys or ())]
    return wanted


def _raw_key(text: str) -> bytes:
    # Imported here: it brings Arrow, and most commands need none.
    from bottomless.model.filter import parse_key_base64  # noqa: PLC0415

    try:
        return parse_key_base64(text)
    except InvalidRequest as error:
        raise typer.BadParameter(str(error), param_hint="--key-base64") from error
