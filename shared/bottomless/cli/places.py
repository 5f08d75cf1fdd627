"""Places in a stream as options name them; checked before any server is asked."""

from typing import Final

import typer

from bottomless.errors import InvalidRequest
from bottomless.model.offset_spec import parse_offset_spec, spec_of_place

CHOICES: Final = (
    "first, last, next, an offset, tail:10, timestamp:T or a time such as 2026-11-22 or "
    "2026-11-22T08:00:00Z, interval:1h, or stored"
)


def checked_place(text: str | None) -> str | None:
    """Turn a place into its offset spec; the callback of an option or argument.

    Raises:
        typer.BadParameter: it is no place; the error names the option and the choices.
    """
    if text is None:
        return None
    spec = spec_of_place(text)
    try:
        parse_offset_spec(spec)
    except InvalidRequest as error:
        # Of one that names its kind it is said what is wrong with it.
        wrong = f"{error.message}; " if ":" in spec else ""
        raise typer.BadParameter(f"{wrong}a place is {CHOICES}") from error
    return spec
