"""The setting `BOTTOMLESS_DRIVES`: drives beside drive 0, by their names.

{"cold": {"number": 2, "url": "s3://bucket/cold"}, "shelf": {"number": 1, "url": "file:///mnt/shelf"}}
"""

from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

import orjson

from bottomless.model.drive import NUMBER_MAX, parse_drive_name

THAWED: Final = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""Storage classes whose objects are no answer to a read before somebody has restored them."""
_MEMBERS: Final = {"number", "url"}


class WrongDrives(ValueError):
    """Settings, the registry of drives and the drives themselves contradict each other.

    No process starts on that, since it would look for fragments where they are not. The message
    completes the sentence "cannot start: …".
    """


class ConfiguredDrive(NamedTuple):
    """A drive as the settings name it."""

    name: str
    number: int
    url: str


def parse_drives(setting: str | None) -> tuple[ConfiguredDrive, ...]:
    """Read the setting, by rising number; without it there is no drive but drive 0.

    Raises:
        WrongDrives: it is not such a table; what it says is not repeated.
    """
    if setting is None:
        return ()
    try:
        table = orjson.loads(setting)
    except orjson.JSONDecodeError:
        raise WrongDrives("BOTTOMLESS_DRIVES is not JSON") from None
    if not isinstance(table, dict):
        raise WrongDrives("BOTTOMLESS_DRIVES must be an object with a member for each drive")
    drives = sorted(
        (_parse_drive(name, said) for name, said in table.items()), key=lambda each: each.number
    )
    if len({drive.number for drive in drives}) < len(drives):
        raise WrongDrives("BOTTOMLESS_DRIVES gives one number to two drives")
    return tuple(drives)


def _parse_drive(name: str, said: Any) -> ConfiguredDrive:
    try:
        parse_drive_name(name)
    except ValueError as error:
        raise WrongDrives(f"in BOTTOMLESS_DRIVES {error}") from None
    if not isinstance(said, dict) or said.keys() != _MEMBERS:
        raise WrongDrives(f"drive {name} of BOTTOMLESS_DRIVES must have a number and a url")
    number, url = said["number"], said["url"]
    # Not isinstance: JSON's true is not a number.
    if type(number) is not int or not 1 <= number <= NUMBER_MAX:
        raise WrongDrives(
            f"the number of drive {name} in BOTTOMLESS_DRIVES must be from 1 to {NUMBER_MAX}"
        )
    if not isinstance(url, str) or not url:
        raise WrongDrives(f"the url of drive {name} in BOTTOMLESS_DRIVES must be a text")
    _require_readable_class(name, url)
    return ConfiguredDrive(name, number, url)


def _require_readable_class(name: str, url: str) -> None:
    try:
        classes = parse_qs(urlsplit(url).query).get("storage_class", [])
    except ValueError:
        raise WrongDrives(f"the url of drive {name} in BOTTOMLESS_DRIVES cannot be read") from None
    if any(each.upper() in THAWED for each in classes):
        raise WrongDrives(
            f"drive {name} of BOTTOMLESS_DRIVES has a storage class whose objects have to be "
            "restored before they can be read; take one that answers at once"
        )
