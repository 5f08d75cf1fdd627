"""Output: values as a table, as JSON or as bare names; never in colour, so pipes get the same."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any, NamedTuple

import orjson
import typer

from bottomless.cli.human import printable

_BLOCK_ROWS = 500
"""A table is laid out in blocks of so many rows, so that a long list needs little memory."""

Item = Mapping[str, Any]


class Form(StrEnum):
    """How something is shown; NAME is only what the next command needs to name it."""

    TABLE = "table"
    JSON = "json"
    NAME = "name"


Output = Annotated[Form, typer.Option("--output", "-o", help="How to show it.")]


class Column(NamedTuple):
    """A column of a table: its title, and how to get its value from an item."""

    title: str
    value: Callable[[Item], object]


def write(data: bytes) -> None:
    """Write bytes to stdout, whatever the terminal's encoding is."""
    sys.stdout.buffer.write(data)


def line(text: str) -> None:
    """Write a line of text to stdout."""
    write(f"{text}\n".encode(errors="replace"))


def tell_unreadable(member: str) -> Callable[[dict[str, Any]], None]:
    """Make a function that reports on stderr an item of a list that the server cannot read.

    `member` is the member that names an item.
    """

    def tell(item: dict[str, Any]) -> None:
        named = printable(f"{item[member]} cannot be read by the server ({item['code']})")
        sys.stderr.write(f"bottomless: {named}\n")

    return tell


def show_list(
    items: Iterable[Item], columns: list[Column], form: Form, *, name: str | None = None
) -> None:
    """Show items as they come; `name` is the member that names one, else the first column."""
    if form is Form.JSON:
        _write_array(items)
    elif form is Form.NAME:
        for item in items:
            line(_cell(item[name] if name else columns[0].value(item)))
    else:
        _write_table(items, columns)


def show(value: Item, form: Form, *, name: str) -> None:
    """Show one thing: its members one below the other, as JSON, or its name alone."""
    if form is Form.NAME:
        line(_cell(name))
        return
    if form is Form.JSON:
        write(orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n")
        return
    facts = list(_flat(value))
    width = max((len(name) for name, _ in facts), default=0)
    for title, fact in facts:
        line(f"{title:<{width}}  {_cell(fact)}")


def _write_array(items: Iterable[Item]) -> None:
    before = b"[\n"
    for item in items:
        write(before + orjson.dumps(item))
        before = b",\n"
    write(b"[]\n" if before == b"[\n" else b"\n]\n")


def _write_table(items: Iterable[Item], columns: list[Column]) -> None:
    rows = ([_cell(column.value(item)) for column in columns] for item in items)
    block = [[column.title for column in columns], *islice(rows, _BLOCK_ROWS)]
    widths = [0] * len(columns)
    while block:
        widths = [
            max(width, *map(len, cells))
            for width, cells in zip(widths, zip(*block, strict=True), strict=True)
        ]
        for row in block:
            line("  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip())
        block = list(islice(rows, _BLOCK_ROWS))


def _flat(value: Item, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, member in value.items():
        if isinstance(member, dict) and member:
            yield from _flat(member, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", member


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case str():
            return printable(value)
        case dict() | list():
            return orjson.dumps(value).decode()
    return str(value)
