"""The hash by which formats know a key, a body or a producer's name. Pure."""

import hashlib


def hash_of(data: bytes) -> bytes:
    """The first 16 bytes of a SHA-256, as formats keep them."""
    return hashlib.sha256(data).digest()[:16]
