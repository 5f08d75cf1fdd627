"""What is fuzzed: every decoder of stored bytes, every parser of what comes from outside.

A target takes any bytes: it reads them, or refuses them as its caller expects. Whatever else
is raised is a finding. Inputs of findings are kept in `found/{target}/`, one file each, and
every run of the tests tries them again.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bottomless.errors import Corrupt
from bottomless.formats.segment import HEADER_SIZE as SEGMENT_HEADER_SIZE
from fuzz.classic import CLASSIC
from fuzz.decoders import DECODERS, sealed_first_chunk, sealed_frame, unsealed
from fuzz.parsers import PARSERS, sealed_osiris

FOUND = Path(__file__).parent / "found"


class Target(NamedTuple):
    run: Callable[[bytes], None]
    good: bytes
    sealed: Callable[[bytes], bytes]
    """Damaged bytes with right checksums, for what has any."""


def _tried(
    call: Callable[[bytes], object], refusals: tuple[type[Exception], ...], data: bytes
) -> None:
    with suppress(*refusals):
        call(data)


def _sealed_log(data: bytes) -> bytes:
    """A segment whose first chunk has right checksums."""
    return data[:SEGMENT_HEADER_SIZE] + sealed_first_chunk(data[SEGMENT_HEADER_SIZE:])


_SEALED = {"log": _sealed_log, "frames": sealed_frame, "segment of RabbitMQ": sealed_osiris}

TARGETS = {
    name: Target(partial(_tried, one.decode, (Corrupt,)), one.good, one.sealed)
    for name, one in DECODERS.items()
} | {
    f"{name}, from outside": Target(
        partial(_tried, one.parse, one.refusals), one.good, _SEALED.get(name, unsealed)
    )
    for name, one in (PARSERS | CLASSIC).items()
}


def folder_of(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")


def kept_inputs(name: str) -> Iterator[Path]:
    """Inputs on which this target failed once."""
    yield from sorted((FOUND / folder_of(name)).glob("*"))
