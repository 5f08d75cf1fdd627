"""Inventory: what `ls` shows of each stream beside its configuration: how much, and how new."""

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from bottomless.cli.failures import tell
from bottomless.cli.human import age_of, size_of
from bottomless.cli.output import Item
from bottomless.errors import StoreError
from bottomless.model.offset_spec import parse_timestamp

if TYPE_CHECKING:
    from bottomless.client import Client

_AT_ONCE: Final = 8
_BLOCK_COUNT: Final = 200
"""Streams that are asked for together, so that a long list needs little memory."""


def with_bounds(client: "Client", streams: Iterable[Item]) -> Iterator[Item]:
    """Add to each stream its bounds as `bounds`; None if the server does not tell them."""
    untold: list[StoreError] = []

    def ask(stream: Item) -> Item:
        try:
            bounds: dict[str, Any] | None = client.bounds(stream["name"])
        except StoreError as error:
            untold.append(error)
            bounds = None
        return {**stream, "bounds": bounds}

    waiting = iter(streams)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        while block := list(islice(waiting, _BLOCK_COUNT)):
            yield from pool.map(ask, block)
    if untold:
        named = "1 stream does" if len(untold) == 1 else f"{len(untold)} streams do"
        tell(f"{named} not tell how much there is: {untold[0].message} ({untold[0].code})")


def records_of(item: Item) -> int | None:
    """Count the offsets that the stream holds; None if its bounds are not known."""
    bounds = item["bounds"]
    return None if bounds is None else bounds["next_offset"] - bounds["first_offset"]


def stored_size_of(item: Item) -> str | None:
    """Format the bytes that object storage holds; None if the bounds are not known."""
    bounds = item["bounds"]
    return None if bounds is None else size_of(bounds["size_bytes"])


def last_age_of(item: Item) -> str | None:
    """Format the age of the last record; None if there is none, or the bounds are not known."""
    bounds = item["bounds"]
    if bounds is None or bounds["last_timestamp"] is None:
        return None
    return age_of(round(time.time() * 1000) - parse_timestamp(bounds["last_timestamp"]))
