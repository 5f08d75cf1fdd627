"""The option `--tiers`: the policy of a stream as one word of a command."""

from typing import Annotated, Any, Final

import typer

from bottomless.cli.stream_config import number_in
from bottomless.model.size import parse_size

Tiers = Annotated[
    str | None,
    typer.Option(
        metavar="DRIVE:LIMIT,…,DRIVE",
        help="Drives, the newest records' first, each but the last with age=7d, bytes=10GB or both"
        " (a:age=7d:bytes=1GB,b); none for no tiers. reads=3 of a later one (b:reads=3) takes up what is"
        " read three times within an hour.",
    ),
]
_NONE: Final = "none"
_HINT: Final = "--tiers"


def with_tiers(config: dict[str, Any], tiers: str | None) -> dict[str, Any]:
    """Add what the option says to a configuration; without the option nothing.

    Raises:
        typer.BadParameter: it is not of its form.
    """
    return config if tiers is None else {**config, "tiers": tiers_in(tiers)}


def tiers_in(text: str) -> list[dict[str, Any]]:
    """Read the option; `none` is an empty list.

    Raises:
        typer.BadParameter: it is not of its form. Whether its limits and drives are right is for the
            server to say.
    """
    return [] if text == _NONE else [_tier_in(one) for one in text.split(",")]


def _tier_in(text: str) -> dict[str, Any]:
    drive, *limits = text.split(":")
    if not drive:
        raise typer.BadParameter("a tier begins with the name of a drive", param_hint=_HINT)
    tier: dict[str, Any] = {"drive": drive}
    for limit in limits:
        name, _, value = limit.partition("=")
        match name:
            case "age" if value:
                tier["max_age"] = value
            case "bytes" if value:
                tier["max_bytes"] = number_in(value, _HINT, parse_size)
            case "reads" if value:
                tier["promote_after_reads"] = number_in(value, _HINT, _no_unit)
            case _:
                raise typer.BadParameter(
                    "after the drive of a tier come :age=7d, :bytes=10GB or :reads=3",
                    param_hint=_HINT,
                )
    return tier


def _no_unit(text: str) -> int:
    raise ValueError(f"reads is a number, and {text} is none")
