"""Options for a stream's configuration, shared by the commands that create and change a stream."""

import re
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, Final

import typer

from bottomless.model.duration import parse_milliseconds
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.size import parse_size

_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
"""As many digits as a 64-bit integer surely takes."""

MaxAge = Annotated[
    str | None,
    typer.Option(help="How long records are kept: 7d, 90 days, 1h30m, unlimited, or default."),
]
MaxBytes = Annotated[
    str | None, typer.Option(help="How many bytes are kept: 10GB, 64MiB, unlimited, or default.")
]


class _FilterIndex(StrEnum):
    NONE = "none"
    VALUES = "values"
    VALUES_AND_KEYS = "values-and-keys"
    DEFAULT = "default"

    @property
    def member(self) -> str | None:
        """As it stands in a configuration, where null is the server's default."""
        return None if self is _FilterIndex.DEFAULT else self.value


def config_of(
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    fragment_bytes: Annotated[
        str | None, typer.Option(help="Size of a fragment: bytes, or 64MiB.")
    ] = None,
    fragment_age_ms: Annotated[
        str | None,
        typer.Option(
            help="How old records get before they are put into a fragment: milliseconds, or 500ms, 10s."
        ),
    ] = None,
    filter_index: Annotated[
        _FilterIndex | None,
        typer.Option(help="What fragments that are made from now on have an index of."),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, or NAME= for none; repeatable.")
    ] = None,
) -> dict[str, Any]:
    """Make a configuration of the members that were named."""
    fragment = {
        "target_bytes": number_in(fragment_bytes, "--fragment-bytes", parse_size),
        "max_age_ms": number_in(fragment_age_ms, "--fragment-age-ms", parse_milliseconds),
    }
    config = {
        "retention": retention_of(max_age, max_bytes),
        "fragment": {name: value for name, value in fragment.items() if value is not None},
        "filter": {} if filter_index is None else {"index": filter_index.member},
        "labels": dict(map(label_in, label or [])),
    }
    return {name: value for name, value in config.items() if value}


def taking(made_by: Callable[..., dict[str, Any]]) -> Callable[..., Callable[..., None]]:
    """Give a command the options of `made_by` in place of its own parameter `config`."""
    made_of = signature(made_by).parameters

    def give(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            config = made_by(**{name: given.pop(name) for name in made_of})
            command(**given, config=config)

        own = signature(command)
        parameters: list[Parameter] = []
        for parameter in own.parameters.values():
            parameters += made_of.values() if parameter.name == "config" else [parameter]
        # What makes a command of a function looks at both.
        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return give


taking_config: Final = taking(config_of)
"""Give a command the options of a stream's configuration."""


def retention_of(max_age: str | None, max_bytes: str | None) -> dict[str, Any]:
    """Make the members that were given; `default` takes one back, as null does."""
    limits: dict[str, Any] = {}
    if max_age is not None:
        limits["max_age"] = None if max_age == "default" else max_age
    if max_bytes is not None:
        words: dict[str, Any] = {"default": None, "unlimited": "unlimited"}
        limits["max_bytes"] = (
            words[max_bytes]
            if max_bytes in words
            else number_in(max_bytes, "--max-bytes", parse_size)
        )
    return limits


def number_in(text: str | None, named: str, parse: Callable[[str], int]) -> int | None:
    """Read a number alone, or one with a unit that `parse` knows.

    Raises:
        typer.BadParameter: it is neither; `named` is the option.
    """
    if text is None:
        return None
    try:
        number = int(text) if _NUMBER.fullmatch(text) else parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=named) from error
    if number > OFFSET_MAX:
        raise typer.BadParameter("it is more than 2^53 - 1", param_hint=named)
    return number


def label_in(text: str) -> tuple[str, str | None]:
    """Read NAME=VALUE; None for no value, which takes the label away.

    Raises:
        typer.BadParameter: it is not of this form.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter("a label is NAME=VALUE", param_hint="--label")
    return name, value or None
