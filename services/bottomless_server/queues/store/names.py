"""Names of message files: `{n}.sqs`, and `{n}.rdq` of version 1. No number is used twice."""

import re
from pathlib import Path
from typing import Final, NamedTuple

FRESH: Final = ".new"
"""What is after the name of a file that is being written anew, until it is whole."""
_NAME: Final = re.compile(r"(0|[1-9][0-9]{0,18})\.(sqs|rdq)", re.ASCII)


class FileName(NamedTuple):
    """The number of a message file, and whether it is of version 1."""

    number: int
    is_version_1: bool


def is_of_version_1(number: int, last_v1_file: int | None) -> bool:
    """Whether a message file is of version 1, by the highest number of those."""
    return last_v1_file is not None and number <= last_v1_file


def path_of(directory: Path, number: int, *, is_version_1: bool = False) -> Path:
    """Where a message file lies."""
    return directory / f"{number}.{'rdq' if is_version_1 else 'sqs'}"


def fresh_path(path: Path) -> Path:
    """Where a file lies that will be at `path` when it is whole."""
    return path.with_name(path.name + FRESH)


def parse_file_name(name: str) -> FileName | None:
    """The number in a name; None of what is no message file."""
    match = _NAME.fullmatch(name)
    return None if match is None else FileName(int(match[1]), match[2] == "rdq")
