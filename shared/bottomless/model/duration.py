"""Durations as people write them: `7d`, `90 days`, `1h30m`, or ISO 8601.

One letter is one unit in either case, except for `m`, which is minutes, and `M`, which is months.
What is stored keeps to the grammar that every release reads: `7D`, `90m`, or ISO 8601.

It is a module of its own, so that a program that reads durations does not load pydantic.
"""

import re
from typing import Final

_STORED_DURATION = re.compile(r"([0-9]{1,9})([YMDhms])", re.ASCII)
_ISO_DURATION = re.compile(
    r"P(?:([0-9]{1,9})Y)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9})W)?(?:([0-9]{1,9})D)?"
    r"(?:T(?=[0-9])(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9})S)?)?",
    re.ASCII,
)
_PART: Final = re.compile(r" ?([0-9]{1,9}) ?([A-Za-z]{1,12})", re.ASCII)
_TEXT_SIZE_MAX: Final = 64
_ISO_SECONDS: Final = (31_536_000, 2_592_000, 604_800, 86_400, 3_600, 60, 1)
_DURATION_SECONDS_MAX: Final = 1_000 * 31_536_000

_MONTH_MS: Final = 2_592_000_000
_WORDS_MS: Final = {
    word: value
    for words, value in {
        "ms msec msecs millisecond milliseconds": 1,
        "s sec secs second seconds": 1_000,
        "m min mins minute minutes": 60_000,
        "h hr hrs hour hours": 3_600_000,
        "d day days": 86_400_000,
        "w week weeks": 604_800_000,
        "mo month months": _MONTH_MS,
        "y yr yrs year years": 31_536_000_000,
    }.items()
    for word in words.split()
}


def parse_duration(text: str) -> int:
    """Read seconds from `7d`, `90 days`, `1h30m` or an ISO 8601 duration.

    A year has 365 days, a month 30.

    Raises:
        ValueError: it is none of these, is zero, is no whole number of seconds, or is more than a
            thousand years.
    """
    if (match := _ISO_DURATION.fullmatch(text)) and any(match.groups()):
        counts = (int(group or 0) for group in match.groups())
        seconds = sum(count * unit for count, unit in zip(counts, _ISO_SECONDS, strict=True))
    else:
        milliseconds = _milliseconds(text)
        if milliseconds is None:
            raise ValueError(
                "a duration must look like 7d, 90 days, 1h30m (m: minutes), 6M (M: months) or P7D (ISO 8601)"
            )
        if milliseconds % 1_000:
            raise ValueError("a duration must be a whole number of seconds")
        seconds = milliseconds // 1_000
    if not 0 < seconds <= _DURATION_SECONDS_MAX:
        raise ValueError("a duration must be from a second to a thousand years")
    return seconds


def parse_milliseconds(text: str) -> int:
    """Read milliseconds from numbers with units, each unit once: `250ms`, `90 days`, `1h30m`.

    Raises:
        ValueError: it is something else.
    """
    milliseconds = _milliseconds(text)
    if milliseconds is None:
        raise ValueError(
            "a time must be a number alone, or look like 250ms, 30s, 1h30m (m: minutes), 7d or 6M (M: months)"
        )
    return milliseconds


def _milliseconds(text: str) -> int | None:
    total, place, units = 0, 0, set()
    while len(text) <= _TEXT_SIZE_MAX and (match := _PART.match(text, place)):
        unit = _MONTH_MS if match[2] == "M" else _WORDS_MS.get(match[2].lower())
        if unit is None or unit in units:
            break
        total, place = total + int(match[1]) * unit, match.end()
        units.add(unit)
    return total if units and place == len(text) else None


def stored_duration(text: str) -> str:
    """Rewrite a duration in the form that every release reads; text in that form stays as it is.

    Raises:
        ValueError: it is no duration that `parse_duration` reads.
    """
    seconds = parse_duration(text)
    if _STORED_DURATION.fullmatch(text) or _ISO_DURATION.fullmatch(text):
        return text
    for letter, unit in (("D", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if seconds % unit == 0 and seconds // unit < 10**9:
            return f"{seconds // unit}{letter}"
    days, rest = divmod(seconds, 86_400)
    return f"P{days}DT{rest}S"
