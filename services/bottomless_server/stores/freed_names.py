"""The mark of freed names: whether any name was taken from its stream since somebody looked.

bottomless:freed      random; another one in each EXEC that frees a name (`streams.freeing`)

A name means the same stream until it is freed. So what a name meant to who asked for it after
he had read the mark, it means for as long as the mark is the same. Marks are compared for being
equal and for nothing else, and none ever comes back with another meaning. A count would, where
coordination loses its last changes and others are made in their place.

Coordination that was rebuilt has another generation, so the two are read together. A release
before this one frees names without the mark: docs/decisions/0039 says what that means.
"""

from typing import NamedTuple

from bottomless_server.coordination.base import Coordination
from bottomless_server.stores.generation import decode_generation
from bottomless_server.stores.streams import FREED_KEY, GENERATION_KEY


class NamesShown(NamedTuple):
    """What coordination shows at one moment."""

    generation: int | None
    """None where there is none: nothing that coordination says is to be believed."""
    mark: str | None
    """None as long as no name was freed."""


async def shown_names(coordination: Coordination) -> NamesShown:
    """Read the generation and the mark, in one round trip.

    Raises:
        CoordinationUnavailable, Corrupt
    """
    generation, mark = await coordination.get_many([GENERATION_KEY, FREED_KEY])
    return NamesShown(
        None if generation is None else decode_generation(generation),
        None if mark is None else mark.decode("ascii", "backslashreplace"),
    )
