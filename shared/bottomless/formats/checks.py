"""Checks that every format shares: its checksum, its padding, and how a fault is named.

All formats are little-endian, start with a magic and a version, and carry CRC-32C (Castagnoli, as
in RFC 3720) over each header and each body.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from bottomless.errors import Corrupt, NotServed

try:
    from fastcrc.crc32 import iscsi as _crc32c
except ImportError:
    # An executor of Spark that was given this package as a file: see crc32c.py.
    from bottomless.formats.crc32c import iscsi as _crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION: Final = 1
"""The version of every format. It is frozen: what is written under it never changes. See docs/decisions/0015."""

VERSION_2: Final = 2
"""The second version of some formats, each for itself. See docs/decisions/0073."""


def crc32c(data: "Buffer", initial: int | None = None) -> int:
    """Compute the CRC-32C of any bytes-like object; `initial` continues an earlier result."""
    return _crc32c(data, initial)


def padded(size: int) -> int:
    """Round `size` up to a multiple of 8."""
    return (size + 7) & ~7


def padding(size: int) -> bytes:
    """Make the zero bytes that bring `size` to a multiple of 8."""
    return bytes(-size % 8)


def corrupt(what: str, why: str) -> Corrupt:
    """Make the error for bytes of a `what` that are wrong, and say `why`. It is not raised here."""
    return Corrupt(f"{what} is corrupt: {why}")


def check_served(what: str, fact: bool, why: str) -> None:
    """Refuse the bytes of a `what` that a later release wrote unless `fact` holds, and say `why`.

    Raises:
        NotServed: the fact is false.
    """
    if not fact:
        raise NotServed(f"{what} cannot be read by this release: {why}")


def check(what: str, fact: bool, why: str) -> None:
    """Refuse the bytes of a `what` unless `fact` holds, and say `why`.

    Raises:
        Corrupt: the fact is false.
    """
    if not fact:
        raise corrupt(what, why)


def check_magic(
    what: str, found: int, wanted: int, version: int, known: Sequence[int] = (VERSION,)
) -> None:
    """Check that the magic is the wanted one, and that the version is among the known ones.

    Raises:
        Corrupt: one of them is another.
    """
    check(what, found == wanted, f"magic is {found:#010x}, not {wanted:#010x}")
    only = " and ".join(map(str, known))
    check(what, version in known, f"version {version} is not known, only {only}")


def magic(text: str) -> int:
    """Turn four ASCII characters into the u32 that shows them in a hex dump."""
    raw = text.encode("ascii")
    assert len(raw) == 4
    return int.from_bytes(raw, "little")
