"""Drives of a deployment: which numbers are which, for ever. Pure.

Entries of a manifest name a drive by its number, so a number that was given once never means another
store. Drive 0 is the store of everything else, and stands in no registry.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from bottomless.model.names import Uid, parse_uid

DEFAULT_NUMBER: Final = 0
DEFAULT_NAME: Final = "default"
"""What the store is called that holds all metadata, and the fragments of streams without tiers."""
NUMBER_MAX: Final = 254
"""The largest number of a drive; 255 stands for several of them, in the entry of a group."""
MIXED: Final = NUMBER_MAX + 1
"""Said of a group instead of a drive: the fragments below it are on several."""
REGISTRY_VERSION_MAX: Final = 10**10 - 1
"""The largest version of a registry of drives: what fits into the key of its object."""
NAME_SIZE_MAX: Final = 64
"""The most characters that the name of a drive may have."""

_FIRST: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_OTHERS: Final = _FIRST | {"-"}


class RegisteredDrive(NamedTuple):
    """One drive beside drive 0, as the registry knows it."""

    name: str
    number: int
    """Never means another drive; 1 to 254."""
    drive_id: Uid
    """Random, 32 hex digits. The drive itself has it too, so that another store can be told."""
    retired: bool
    """Whether nothing lies on it any more. Its name and number stay taken."""
    retiring: Uid | None = None
    """The number of the operation that looks whether it can be retired, 32 hex digits; None if none
    does. Nothing new is put on the drive meanwhile, and what is there is used as before."""
    lost: bool = False
    """Whether an operator has said that the drive will never be back. It is never used again, and what
    streams had there is lost. Its name and number stay taken."""

    @property
    def is_open(self) -> bool:
        """Whether fragments may be put on it."""
        return not self.is_gone and self.retiring is None

    @property
    def is_gone(self) -> bool:
        """Whether nothing is looked for on it any more: nothing lies there, or all of that is lost."""
        return self.retired or self.lost


class DriveRegistry(NamedTuple):
    """All drives that there ever were, beside drive 0, by rising number."""

    version: int
    """Counts the changes, from 1. The highest counts."""
    drives: tuple[RegisteredDrive, ...]


class DriveMarker(NamedTuple):
    """What a drive says of itself: which one it is."""

    number: int
    drive_id: Uid


def parse_drive_name(text: str) -> str:
    """Check the name of a drive: at most 64 lower case letters, digits and `-`, no `-` in front.

    Raises:
        ValueError: it is something else, or the name of drive 0.
    """
    if not text or len(text) > NAME_SIZE_MAX or text[0] not in _FIRST or set(text) - _OTHERS:
        raise ValueError(
            f"the name of a drive must have at most {NAME_SIZE_MAX} lower case letters, digits and "
            "'-', and begin with none of the latter"
        )
    if text == DEFAULT_NAME:
        raise ValueError(f"{DEFAULT_NAME} is the name of drive 0, which is there already")
    return text


def check_drives(drives: Sequence[RegisteredDrive]) -> None:
    """Check that drives can stand in one registry: each name, number and id once, by number.

    Raises:
        ValueError: they cannot.
        InvalidRequest: an id is not 32 hex digits.
    """
    numbers = [drive.number for drive in drives]
    if numbers != sorted(set(numbers)):
        raise ValueError("the numbers of drives must rise")
    if any(not DEFAULT_NUMBER < number <= NUMBER_MAX for number in numbers):
        raise ValueError(f"the number of a drive must be from 1 to {NUMBER_MAX}")
    names = {parse_drive_name(drive.name) for drive in drives}
    ids = {parse_uid(drive.drive_id) for drive in drives}
    if min(len(names), len(ids)) < len(drives):
        raise ValueError("two drives have one name, or one id")
    if any(drive.retired and drive.retiring for drive in drives):
        raise ValueError("a drive that is retired cannot be about to be")
