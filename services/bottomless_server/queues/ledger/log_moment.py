"""Whether the log of a ledger was begun on the database beside it, before SQLite moves any of it there.

SQLite believes any log with right checksums under the name of a database. One that was left beside a
database of another moment, which was put back from a back-up, makes a mixture of both: pages that the
log has are new, and all others are old. Some of that is noticed as damage, and some is not: messages are
gone without a word.

So the header of the database counts logs (`user_version`): the first transaction in a new log counts it.
It has page 1, which then says one more than the database; or the same, where a death cut off the moving of
pages. Ledgers of before say 0 everywhere. What was never committed says nothing: SQLite does not believe
it either, and a loss of power may bring it back long after.
"""

import struct
from collections.abc import Callable
from typing import Final

from bottomless.guards import guard

Read = Callable[[int, int], bytes]
"""Reads so many bytes, or what is there of them, at a position."""

LOG_COUNT_MAX: Final = 2**31 - 1
_VERSION: Final = slice(60, 64)
"""Where page 1 has `user_version`."""
_HEADER: Final = struct.Struct(">4sIII8sII")
"""Begins a log: magic, version, size of pages, number of checkpoints, salts, two sums of all before them."""
_FRAME: Final = struct.Struct(">II8sII")
"""Before each page: its number, the pages of the database after a COMMIT or 0, salts, two sums."""
_ORDERS: Final = {b"\x37\x7f\x06\x82": "<", b"\x37\x7f\x06\x83": ">"}
"""The order of bytes of what is summed up, by the magic."""
_PAGE_SIZES: Final = frozenset(2**power for power in range(9, 17))
_MASK: Final = 2**32 - 1

Sums = tuple[int, int]


def next_log(number: int) -> int:
    """The number of the log after this one."""
    return 1 if number >= LOG_COUNT_MAX else number + 1


@guard("a log of a ledger is of its moment")
def is_of_one_moment(database: int, log: int | None) -> bool:
    """Whether a log may belong to a database, by what each says of how many logs there were."""
    return log is None or log in (database, next_log(database))


def log_of_database(read: Read) -> int:
    """What a database says in its file, whatever its log says."""
    return int.from_bytes(read(_VERSION.stop - _VERSION.start, _VERSION.start), "big")


def log_of_log(read: Read) -> int | None:
    """What the first transaction of a log says; None where nothing in it was committed, or not that."""
    header = read(_HEADER.size, 0)
    if len(header) < _HEADER.size:
        return None
    magic, _, page_size, _, salts, *sums = _HEADER.unpack(header)
    order = _ORDERS.get(magic)
    if order is None or page_size not in _PAGE_SIZES:
        return None
    summed = _summed(header[:24], order, (0, 0))
    said, at = None, _HEADER.size
    while summed == tuple(sums):
        frame = read(_FRAME.size + page_size, at)
        if len(frame) < _FRAME.size + page_size:
            return None
        number, committed, own_salts, *sums = _FRAME.unpack_from(frame)
        if own_salts != salts:
            return None
        page = frame[_FRAME.size :]
        summed = _summed(page, order, _summed(frame[:8], order, summed))
        if number == 1:
            said = int.from_bytes(page[_VERSION], "big")
        if committed and summed == tuple(sums):
            return said
        at += len(frame)
    return None


def _summed(data: bytes, order: str, sums: Sums) -> Sums:
    """The sums of SQLite over all that comes before and this."""
    one, two = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & _MASK
        two = (two + second + one) & _MASK
    return one, two
