"""The optional end of an entry: hashes and a producer's name, whose presence a mask tells.

    | idempotency_hash 16? | principal_hash 16? | body_hash 16? | size 1 + producer_id ? | padding
        |

Trailer entries and tracking entries end alike, so that one piece of code reads both. Spec:
docs/formats.md, "Trailer entry".
"""

from typing import Final, NamedTuple

from bottomless.formats.checks import check

_HAS_PRODUCER: Final = 1
_HASHES: Final = {"idempotency_hash": 2, "principal_hash": 4, "body_hash": 8}
"""Bits of the mask, in the order in which the hashes stand."""
_HASH_SIZE: Final = 16
_PRESENT_ALL: Final = _HAS_PRODUCER | sum(_HASHES.values())


class Parts(NamedTuple):
    """What may follow the fixed part of an entry; each hash has 16 bytes."""

    producer_id: str | None = None
    idempotency_hash: bytes | None = None
    principal_hash: bytes | None = None
    body_hash: bytes | None = None


_NOTHING: Final = Parts()


def encode_parts(parts: Parts) -> tuple[int, bytes]:
    """Encode the parts that are present: a mask that names them, and their bytes without padding."""
    if parts == _NOTHING:
        return 0, b""
    present, tail = 0, b""
    for name, bit in _HASHES.items():
        digest = getattr(parts, name)
        if digest is not None:
            assert len(digest) == _HASH_SIZE
            present |= bit
            tail += digest
    if parts.producer_id is not None:
        producer = parts.producer_id.encode("ascii")
        assert len(producer) <= 255
        present |= _HAS_PRODUCER
        tail += bytes([len(producer)]) + producer
    return present, tail


def decode_parts(what: str, present: int, tail: bytes) -> Parts:
    """Read what follows the fixed part of a `what`, padding included; `present` is the mask.

    Raises:
        Corrupt: it is cut short, or holds more than the mask says.
    """
    check(what, present <= _PRESENT_ALL, f"present {present:#x} is not known")
    digests: dict[str, bytes | None] = {}
    for name, bit in _HASHES.items():
        digest = None
        if present & bit:
            digest, tail = tail[:_HASH_SIZE], tail[_HASH_SIZE:]
            check(what, len(digest) == _HASH_SIZE, "a hash is cut short")
        digests[name] = digest
    producer = None
    if present & _HAS_PRODUCER:
        check(what, len(tail) > 0 and len(tail) > tail[0], "its producer id is cut short")
        name_bytes = tail[1 : 1 + tail[0]]
        check(what, name_bytes.isascii(), "its producer id is not ASCII")
        producer, tail = name_bytes.decode("ascii"), tail[1 + len(name_bytes) :]
    check(what, len(tail) < 8 and not any(tail), "bytes follow that it does not describe")
    return Parts(producer, **digests)
