"""What the commands of all jobs share: the stream they read, where they run, how they answer."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, Final

import typer

CONNECT: Final = "bottomless.spark.connect"
"""Where a surrounding program leaves what it knows about the server, in the context's `meta`."""
URL_VARIABLE: Final = "BOTTOMLESS_URL"
URL_DEFAULT: Final = "http://127.0.0.1:8080"

Stream = Annotated[str, typer.Argument(help="Name of the stream.")]
Url = Annotated[
    str | None, typer.Option(help=f"The server; else {URL_VARIABLE}.", show_default=URL_DEFAULT)
]
Start = Annotated[
    str | None,
    typer.Option("--from", help="First offset: first, 1040, tail:1000, interval:10m or a time."),
]
End = Annotated[
    str | None, typer.Option("--until", help="Stop before this offset; same forms as --from.")
]
Extra = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Any other option of a read; repeatable."),
]
RoundSize = Annotated[
    int | None,
    typer.Option("--round-bytes", min=1, help="Bytes of the stream in one round, roughly."),
]
Master = Annotated[
    str | None, typer.Option(help="Where Spark runs; the command is sent there by spark-submit.")
]
Submit = Annotated[
    list[str] | None,
    typer.Option(metavar="WORD", help="A word for spark-submit, such as --submit=--verbose."),
]


class Form(StrEnum):
    """How an answer is shown: a table, JSON, or only the member that says most of it."""

    TABLE = "table"
    JSON = "json"
    NAME = "name"


Output = Annotated[Form, typer.Option("--output", "-o", help="How to show it.")]


def read_of(
    context: typer.Context,
    stream: Stream,
    url: Url = None,
    start: Start = None,
    end: End = None,
    option: Extra = None,
) -> dict[str, str]:
    """Make the options of a read from the parameters of the command line."""
    options = pairs("--option", option)
    options |= {} if start is None else {"startingOffsets": start}
    options |= {} if end is None else {"endingOffsets": end}
    return options | {"stream": stream, "url": server_of(context, url)()}


def taking_read(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the parameters of `read_of` in place of its own parameter `read`."""
    made_of = dict(signature(read_of).parameters)
    del made_of["context"]

    @wraps(command)
    def run(context: typer.Context, **given: Any) -> None:
        read = read_of(context, **{name: given.pop(name) for name in made_of})
        command(context, **given, read=read)

    own = signature(command)
    parameters: list[Parameter] = []
    for parameter in own.parameters.values():
        parameters += made_of.values() if parameter.name == "read" else [parameter]
    # A parameter without a default may stand after one that has one: they are named, all of them.
    parameters = [
        each if each.name == "context" else each.replace(kind=Parameter.KEYWORD_ONLY)
        for each in parameters
    ]
    # What makes a command of a function looks at both.
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def server_of(context: typer.Context, url: str | None) -> Callable[[], str]:
    """Find out the server's url when the returned function is called.

    It is the option, else what the surrounding program knows, else that of the environment.
    """

    def server() -> str:
        connect = context.meta.get(CONNECT)
        if url is None and connect is not None:
            return str(connect())
        return url or os.environ.get(URL_VARIABLE) or URL_DEFAULT

    return server


def pairs(name: str, given: list[str] | None) -> dict[str, str]:
    """Read options of the form NAME=VALUE; `name` is the option that an error names.

    Raises:
        typer.BadParameter: one has another form.
    """
    found = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter("it is NAME=VALUE", param_hint=name)
        found[key] = value
    return found


def show(members: Mapping[str, Any], form: Form, *, name: str) -> None:
    """Write the answer to stdout, which carries nothing else."""
    match form:
        case Form.JSON:
            lines = [json.dumps(members, indent=2)]
        case Form.NAME:
            lines = [_text(members[name])]
        case Form.TABLE:
            width = max(map(len, members))
            lines = [f"{each:<{width}}  {_text(value)}" for each, value in members.items()]
    with suppress(BrokenPipeError):
        sys.stdout.write("\n".join(lines) + "\n")


def _text(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case dict() | list():
            return json.dumps(value)
    return str(value)
