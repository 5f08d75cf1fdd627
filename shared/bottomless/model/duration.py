"""Durations as people write them: `7D`, `90m` or ISO 8601.

By itself, so that whoever reads one does not load what configurations are checked with.
"""

import re
from typing import Final

_SIMPLE_DURATION = re.compile(r"([0-9]{1,9})([YMDhms])", re.ASCII)
_ISO_DURATION = re.compile(
    r"P(?:([0-9]{1,9})Y)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9})W)?(?:([0-9]{1,9})D)?"
    r"(?:T(?=[0-9])(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9})S)?)?",
    re.ASCII,
)
_UNIT_SECONDS: Final = {"Y": 31_536_000, "M": 2_592_000, "D": 86_400, "h": 3_600, "m": 60, "s": 1}
_ISO_SECONDS: Final = (31_536_000, 2_592_000, 604_800, 86_400, 3_600, 60, 1)
_DURATION_SECONDS_MAX: Final = 1_000 * 31_536_000


def parse_duration(text: str) -> int:
    """Seconds of `7D`, `90m` or an ISO 8601 duration; a year has 365 days, a month 30.

    Raises:
        ValueError: it is neither, or nothing, or more than a thousand years.
    """
    if match := _SIMPLE_DURATION.fullmatch(text):
        seconds = int(match[1]) * _UNIT_SECONDS[match[2]]
    elif (match := _ISO_DURATION.fullmatch(text)) and any(match.groups()):
        counts = (int(group or 0) for group in match.groups())
        seconds = sum(count * unit for count, unit in zip(counts, _ISO_SECONDS, strict=True))
    else:
        raise ValueError("a duration is a number with one of Y M D h m s, or ISO 8601")
    if not 0 < seconds <= _DURATION_SECONDS_MAX:
        raise ValueError("a duration lies between a second and a thousand years")
    return seconds
