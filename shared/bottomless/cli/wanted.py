"""Options of commands that read: which records are asked for, by filter value and key."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

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


def wanted_of(
    values: list[str] | None, keys: list[str] | None, *, match_unfiltered: bool
) -> "Mapping[str, Parameter]":
    """Make the parameters of a read; there are none where everything is asked for.

    Raises:
        BadParameter: `--match-unfiltered` stands without `--filter`.
    """
    if match_unfiltered and not values:
        raise typer.BadParameter("goes with --filter", param_hint="--match-unfiltered")
    wanted: dict[str, Parameter] = {}
    if values:
        wanted["filter"] = values
    if match_unfiltered:
        wanted["match_unfiltered"] = True
    if keys:
        wanted["key"] = keys
    return wanted
