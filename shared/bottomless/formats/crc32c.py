"""CRC-32C by numpy, for machines without a compiled library: much slower, with the same sums.

Spark's executors may have nothing of ours but a zip file of Python, from which no compiled module
can be loaded, and checks are not left out for that reason.

A checksum goes through its bytes one after the other, which Python cannot do quickly. But it is
linear: data is cut into lanes of the same size, all lanes advance together, eight bytes a step, and
the result of each lane is then moved past the lanes after it, as if they were zeros, and added.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from typing_extensions import Buffer

_POLYNOMIAL: Final = 0x82F63B78
_ALL: Final = 0xFFFFFFFF
_LANE_COUNT_MAX: Final = 4096
_LANE_SIZE: Final = 256
"""Fewer bytes a lane than this cost more to put together than they save."""
_PIECE_SIZE: Final = 64 * 1024 * 1024
"""Bytes at a time, so that what is looked up for all lanes stays small."""

_SIZE_BITS: Final = 64
"""Bits of the size of any data."""

Words = NDArray[np.uint32]


def iscsi(data: "Buffer", initial: int | None = None) -> int:
    """Compute the CRC-32C of `data`; `initial` continues the checksum of what was before it."""
    state = (initial or 0) ^ _ALL
    rest: NDArray[np.uint8] = np.frombuffer(memoryview(data), dtype=np.uint8)
    while len(rest):
        size = _lanes_size(min(len(rest), _PIECE_SIZE))
        if not size:
            return _slowly(rest, state) ^ _ALL
        state = _moved(state, size) ^ _of_lanes(rest[:size])
        rest = rest[size:]
    return state ^ _ALL


def _lanes_size(size: int) -> int:
    """The bytes that are done in lanes: a power of two of them, each of whole words."""
    if size < 2 * _LANE_SIZE:
        return 0
    count = min(_LANE_COUNT_MAX, 1 << (size // _LANE_SIZE).bit_length() - 1)
    return count * (size // count // 8 * 8)


def _of_lanes(data: NDArray[np.uint8]) -> int:
    """What the register holds after these bytes if it was 0 before."""
    count = min(_LANE_COUNT_MAX, 1 << (len(data) // _LANE_SIZE).bit_length() - 1)
    size = len(data) // count
    # One word of every lane side by side.
    words = np.ascontiguousarray(data.reshape(count, size).view(np.dtype("<u4")).T)
    tables = _tables()
    state = np.zeros(count, dtype=np.uint32)
    for low, high in zip(words[0::2], words[1::2], strict=True):
        first = state ^ low
        state = tables[7][first & 0xFF] ^ tables[6][first >> 8 & 0xFF]
        state ^= tables[5][first >> 16 & 0xFF] ^ tables[4][first >> 24]
        state ^= tables[3][high & 0xFF] ^ tables[2][high >> 8 & 0xFF]
        state ^= tables[1][high >> 16 & 0xFF] ^ tables[0][high >> 24]
    while len(state) > 1:
        state = _past(state[0::2], size) ^ state[1::2]
        size *= 2
    return int(state[0])


def _moved(state: int, size: int) -> int:
    return int(_past(np.array([state], dtype=np.uint32), size)[0])


def _past(states: Words, size: int) -> Words:
    """Each register after so many zero bytes."""
    found: Words = np.zeros(len(states), dtype=np.uint32)
    for bit, image in enumerate(_zeros(size)):
        found ^= np.where(states >> np.uint32(bit) & np.uint32(1), image, np.uint32(0))
    return found


@lru_cache(maxsize=256)
def _zeros(size: int) -> Words:
    """What `size` zero bytes make of each bit of a register."""
    if size == 0:
        return np.left_shift(np.uint32(1), np.arange(32, dtype=np.uint32))
    if size % 2:
        before = _zeros(size - 1)
        one: Words = _tables()[0][before & 0xFF] ^ (before >> np.uint32(8))
        return one
    half = _zeros(size // 2)
    doubled: Words = np.zeros(32, dtype=np.uint32)
    for bit, image in enumerate(half):
        doubled ^= np.where(half >> np.uint32(bit) & np.uint32(1), image, np.uint32(0))
    return doubled


@lru_cache(maxsize=1)
def _tables() -> list[Words]:
    """What each byte leaves in the register; then the same with zero bytes after it."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(_POLYNOMIAL), table >> 1)
    tables: list[Words] = [table.astype(np.uint32)]
    for _ in range(7):
        tables.append(tables[0][tables[-1] & 0xFF] ^ (tables[-1] >> np.uint32(8)))
    return tables


def _slowly(data: NDArray[np.uint8], state: int) -> int:
    table = _tables()[0]
    for byte in data.tolist():
        state = int(table[(state ^ byte) & 0xFF]) ^ state >> 8
    return state


def combine(first: int, second: int, second_size: int) -> int:
    """Compute the checksum of two adjacent pieces of data from the checksum of each.

    `second_size` is the size of the second piece in bytes. The first checksum is moved past so many
    zero bytes. That is a multiplication by a power of x, which for a single register is ten times
    quicker than what the lanes use.
    """
    power, bits = _ONE, second_size
    for square in _squares():
        if not bits:
            break
        if bits & 1:
            power = _product(square, power)
        bits >>= 1
    return _product(power, first) ^ second


_ONE: Final = 1 << 31
"""As a polynomial: the lowest power is the highest bit."""


def _product(first: int, second: int) -> int:
    """The product of two polynomials, modulo that of the checksum."""
    product = 0
    while first:
        if first & _ONE:
            product ^= second
        first = first << 1 & _ALL
        second = second >> 1 ^ (_POLYNOMIAL if second & 1 else 0)
    return product


@lru_cache(maxsize=1)
def _squares() -> list[int]:
    """X to the power of 8, 16, 32 and so on: what 1, 2, 4 zero bytes do."""
    square = _ONE >> 8
    squares = []
    for _ in range(_SIZE_BITS):
        squares.append(square)
        square = _product(square, square)
    return squares


def combine_all(sums: Words, sizes: NDArray[np.uint64]) -> int:
    """Compute the checksum of many adjacent pieces of data, in order, from the checksum of each.

    Each is moved past the bytes after its piece, all of them together: one power of two of bytes
    after the other, for those whose distance has it.
    """
    ends = np.cumsum(sizes, dtype=np.uint64)
    if not len(ends):
        return 0
    distances, moved = ends[-1] - ends, sums.astype(np.uint32)
    for bit in range(int(distances[0]).bit_length()):
        chosen = distances >> np.uint64(bit) & np.uint64(1) != 0
        first, second, third, fourth = _moves(bit)
        some = moved[chosen]
        moved[chosen] = (
            first[some & 0xFF]
            ^ second[some >> 8 & 0xFF]
            ^ third[some >> 16 & 0xFF]
            ^ fourth[some >> 24]
        )
    return int(np.bitwise_xor.reduce(moved))


@lru_cache(maxsize=_SIZE_BITS)
def _moves(bit: int) -> list[Words]:
    """For each byte of a register, what 2 to the power of `bit` zero bytes make of it."""
    bytes_ = np.arange(256, dtype=np.uint32)
    return [_past(bytes_ << np.uint32(place), 1 << bit) for place in (0, 8, 16, 24)]
