"""What people read: sizes and ages, short and exact enough; text that a terminal only shows. Pure."""

from typing import Final

_UNITS: Final = ("kB", "MB", "GB", "TB", "PB", "EB")
_AGES: Final = ((365 * 86_400, "y"), (86_400, "d"), (3_600, "h"), (60, "m"))


def size_of(count: int) -> str:
    """Format bytes in units of thousands, as disks and bills have them: `104.7 MB`."""
    if count < 1000:
        return f"{count} B"
    size, power = count / 1000, 0
    while size >= 999.95 and power < len(_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {_UNITS[power]}"


def age_of(milliseconds: int) -> str:
    """Format an age in ms, in the largest unit that fits: `3s`, `5m`, `2h`, `7d`."""
    seconds = max(milliseconds // 1000, 0)
    for unit_seconds, unit in _AGES:
        if seconds >= unit_seconds:
            return f"{seconds // unit_seconds}{unit}"
    return f"{seconds}s"


def printable(text: str) -> str:
    """Replace what a terminal would obey instead of showing it."""
    return "".join(c if c.isprintable() else "?" for c in text)
