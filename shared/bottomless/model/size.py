"""Sizes as people write them: `10GB` is 10 * 1000^3 bytes, `10GiB` is 10 * 1024^3.

`10G` is refused: half of the world's programs mean the first by it, and half the second.
"""

import re
from decimal import Decimal
from typing import Final

_SIZE: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,6})?) ?([A-Za-z]{0,5})", re.ASCII)
_PREFIXES: Final = ("k", "m", "g", "t", "p")
_UNITS: Final = {
    "": 1,
    "b": 1,
    "byte": 1,
    "bytes": 1,
    **{f"{prefix}b": 1000 ** (power + 1) for power, prefix in enumerate(_PREFIXES)},
    **{f"{prefix}ib": 1024 ** (power + 1) for power, prefix in enumerate(_PREFIXES)},
}


def parse_size(text: str) -> int:
    """Read bytes from a number alone, or from one with `B`, `KB` to `PB` or `KiB` to `PiB`.

    The former are powers of 1000, the latter of 1024; upper and lower case mean the same.

    Raises:
        ValueError: it is something else, or no whole number of bytes.
    """
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(
            "a size must be a number of bytes, or a number with KB, MB, GB, TB (powers of 1000) or KiB, "
            "MiB, GiB, TiB (powers of 1024)"
        )
    size = Decimal(match[1]) * unit
    if size != int(size):
        raise ValueError("a size must be a whole number of bytes")
    return int(size)
