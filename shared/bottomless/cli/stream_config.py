"""Stream configuration as options, shared by the commands that make one and that change one."""

import re
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, Final

import typer

from bottomless.model.limits import OFFSET_MAX

_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
"""As many digits as a 64-bit integer surely takes."""

MaxAge = Annotated[
    str | None,
    typer.Option(help="How long records are kept: 7D, 90m, PT1H, unlimited, or default."),
]
MaxBytes = Annotated[
    str | None, typer.Option(help="How many bytes are kept: a number, unlimited, or default.")
]


def config_of(
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    fragment_bytes: Annotated[
        int | None, typer.Option(max=OFFSET_MAX, help="Size of a fragment.")
    ] = None,
    fragment_age_ms: Annotated[
        int | None,
        typer.Option(
            max=OFFSET_MAX, help="How old what is in no fragment yet becomes, in milliseconds."
        ),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, or NAME= for none; repeatable.")
    ] = None,
) -> dict[str, Any]:
    """The members of a configuration that were named."""
    fragment = {"target_bytes": fragment_bytes, "max_age_ms": fragment_age_ms}
    config = {
        "retention": retention_of(max_age, max_bytes),
        "fragment": {name: value for name, value in fragment.items() if value is not None},
        "labels": dict(map(_label, label or [])),
    }
    return {name: value for name, value in config.items() if value}


def taking_config(command: Callable[..., None]) -> Callable[..., None]:
    """Let the options of `config_of` stand where a command has its parameter `config`."""
    made_of = signature(config_of).parameters

    @wraps(command)
    def run(**given: Any) -> None:
        config = config_of(**{name: given.pop(name) for name in made_of})
        command(**given, config=config)

    own = signature(command)
    parameters: list[Parameter] = []
    for parameter in own.parameters.values():
        parameters += made_of.values() if parameter.name == "config" else [parameter]
    # What makes a command of a function looks at both.
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


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


def _label(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter("a label is NAME=VALUE", param_hint="--label")
    return name, value or None
