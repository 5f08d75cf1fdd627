"""Update all streams whose names start alike: what a policy by name does elsewhere.

Each stream is changed by a request of its own, in the order of names. What is cut off goes on by the same
command: a stream that has the wanted configuration already is left alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer

from bottomless.cli.asking import confirm
from bottomless.cli.failures import exit_code_of, sentence_of, tell
from bottomless.cli.output import Column, Form, Item, show_list, tell_unreadable
from bottomless.cli.session import open_client
from bottomless.errors import Code, Denied, NotFound, StoreError, WrongOffset
from bottomless.model.duration import stored_duration

if TYPE_CHECKING:
    from bottomless.client import Client

_DEFAULT: Final = "default"
_AGES: Final = ("retention", "max_age")

Leaf = tuple[tuple[str, ...], Any]
"""A member of a configuration that is no object, by its path; null stands for the default."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How all of them are changed."""

    dry_run: bool
    yes: bool
    output: Form


def update_all(context: typer.Context, prefix: str, config: dict[str, Any], manner: Manner) -> None:
    """Change every stream with a prefix, and show which, and what of each.

    A stream that cannot be changed is told on stderr, and the others go on.

    Raises:
        typer.Exit: one could not be changed.
    """
    leaves = list(_leaves(config))
    failures: list[StoreError] = []
    with open_client(context) as client:
        found = client.list_streams(prefix=prefix, unreadable=tell_unreadable("name"))
        items = ({"name": one["name"], "changes": changes_of(one, leaves)} for one in found)
        wanted: Iterator[Item] = (one for one in items if one["changes"])
        if not manner.dry_run:
            # All of them are known before the first is changed, and asked for together.
            streams = list(wanted)
            if "retention" in config and streams:
                confirm(f"Change what {_streams(len(streams))} keep?", manner.yes)
            wanted = _changed(client, streams, config, failures)
        show_list(wanted, [_NAME, _CHANGES], manner.output, name="name")
    if failures:
        raise typer.Exit(exit_code_of(failures[0]))


def changes_of(stream: Item, leaves: list[Leaf]) -> list[dict[str, Any]]:
    """List what would be changed of a stream: each member with its value now and then."""
    found = ((path, _now(stream, path), _then(path, after)) for path, after in leaves)
    return [
        {"member": ".".join(path), "before": before, "after": after}
        for path, before, after in found
        if before != after
    ]


def _now(stream: Item, path: tuple[str, ...]) -> Any:
    value: Any = stream
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _then(path: tuple[str, ...], value: Any) -> Any:
    # A label that is taken away is gone; of anything else null means the server's default.
    return _DEFAULT if value is None and path[0] != "labels" else value


def _changed(
    client: "Client", streams: list[Item], config: dict[str, Any], failures: list[StoreError]
) -> Iterator[Item]:
    for stream in streams:
        try:
            client.update_stream(stream["name"], config)
        except (Denied, NotFound, WrongOffset) as error:
            # It says something of this stream alone: of one that was removed meanwhile nothing.
            if error.code is not Code.STREAM_NOT_FOUND:
                failures.append(error)
                tell(f"{stream['name']}: {sentence_of(error)}")
            continue
        yield stream


def _leaves(config: Any, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    if not isinstance(config, dict):
        is_age = path == _AGES and config not in (None, "unlimited")
        yield path, _stored_age(config) if is_age else config
        return
    for name, value in config.items():
        yield from _leaves(value, (*path, name))


def _stored_age(text: str) -> str:
    """Write a duration as the server shows it."""
    try:
        return stored_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--max-age") from error


def _told(item: Item) -> str:
    return ", ".join(
        f"{one['member']}: {_word(one['before'])} → {_word(one['after'])}"
        for one in item["changes"]
    )


def _word(value: object) -> str:
    return "-" if value is None else str(value)


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"


_NAME: Final = Column("NAME", lambda item: item["name"])
_CHANGES: Final = Column("CHANGES", _told)
