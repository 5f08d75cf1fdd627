"""What an object key may look like on every drive, so that no key means two things."""

from typing import Final

SCRATCH_DIRECTORY: Final = ".tmp"
"""First part of no key: where a directory drive keeps files that are not objects yet."""

KEY_SIZE_MAX: Final = 1024
"""What S3 allows."""
PART_SIZE_MAX: Final = 255
"""What file systems allow between two slashes."""


def check_object_key(object_key: str) -> None:
    """Refuse a key that some drive would store elsewhere than under its prefix, or not at all.

    Keys are built by `formats/keys.py` alone, so a refused one is a bug of ours.

    Raises:
        ValueError: it is empty or too long, not printable ASCII, or a part is empty, `.` or `..`.
    """
    parts = object_key.split("/")
    fine = (
        len(object_key) <= KEY_SIZE_MAX
        and object_key.isascii()
        and object_key.isprintable()
        and parts[0] != SCRATCH_DIRECTORY
        and all(part not in ("", ".", "..") and len(part) <= PART_SIZE_MAX for part in parts)
    )
    if not fine:
        raise ValueError(f"not an object key: {object_key!r}")
