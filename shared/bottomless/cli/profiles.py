"""Profiles: servers with a name, and the user's credential there, in a file of the user's own.

The file is `config.toml` in the directory that the system has for such files. A table is a profile;
`[default]` is used where none is named. Secrets are read here and shown nowhere.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE, S_ISREG
from typing import Any, Final

import typer

from bottomless.cli.connection import Layer

DEFAULT: Final = "default"
FILE_NAME: Final = "config.toml"
MEMBERS: Final = ("url", "token", "token_file", "ca_file")

_OTHERS: Final = 0o077
"""The rights of everybody but the owner."""

_FILE_SIZE_MAX: Final = 64 * 1024
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,8192}", re.ASCII)
"""What fits into a header, and no more than the server takes of one."""


def config_file() -> Path:
    """Find the file of profiles, whether or not it exists."""
    from platformdirs import user_config_path  # noqa: PLC0415

    return user_config_path("bottomless") / FILE_NAME


def load_profile(name: str | None, file: Path) -> Layer | None:
    """Load the profile of that name, which must exist, or the default one, which need not.

    Raises:
        typer.BadParameter: there is no such profile, or the file cannot be read.
    """
    profiles = _profiles(file)
    found = profiles.get(name or DEFAULT)
    if found is None:
        if name is None:
            return None
        known = ", ".join(sorted(profiles)) or "none"
        hint = "; a leaderless stream is made with --leaderless" if name == "leaderless" else ""
        fault = f"there is no profile of this name in {file}; there are: {known}{hint}"
        raise _wrong(fault, "--profile")
    return _layer(name or DEFAULT, found, file)


def complete_profile(incomplete: str) -> list[str]:
    """List the names of profiles that start with a text, for the shell.

    It is empty if the file cannot be read.
    """
    with suppress(typer.BadParameter):
        return sorted(name for name in _profiles(config_file()) if name.startswith(incomplete))
    return []


def read_token(file: Path, named: str) -> str:
    """Read the one line that a token file holds; `named` is how the user named the file.

    Raises:
        typer.BadParameter: the file cannot be read, others may read it, or it holds no token.
    """
    try:
        with file.open("rb") as opened:
            _refuse_open_to_others(opened.fileno(), file, named)
            text = opened.read(_FILE_SIZE_MAX + 1).decode("ascii", "replace").strip()
    except OSError as error:
        raise _wrong(f"{file}: {error.strerror}", named) from error
    return checked_token(text, named)


def checked_token(text: str, named: str) -> str:
    """Check that a text can be a token; the error does not repeat it.

    Raises:
        typer.BadParameter: it is not one word of printable ASCII.
    """
    if not _TOKEN.fullmatch(text):
        raise _wrong("there is no token in it: one word of printable ASCII is expected", named)
    return text


def _profiles(file: Path) -> Mapping[str, Any]:
    import tomllib  # noqa: PLC0415

    try:
        with file.open("rb") as opened:
            profiles = tomllib.loads(opened.read(_FILE_SIZE_MAX).decode())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _wrong(f"{file}: {error.strerror}", "--profile") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        # What it says of the place is useful; it never repeats more than one character.
        raise _wrong(f"{file} is not TOML: {error}", "--profile") from error
    return profiles


def _layer(name: str, members: object, file: Path) -> Layer:
    if not isinstance(members, dict) or any(not isinstance(m, str) for m in members.values()):
        raise _wrong(f"{file}: [{name}] is not a table of strings", "--profile")
    unknown = sorted(set(members) - set(MEMBERS))
    if unknown:
        taken = ", ".join(MEMBERS)
        raise _wrong(f"{file}: [{name}] has {unknown[0]}, and takes only {taken}", "--profile")
    if "token" in members:
        if "token_file" in members:
            raise _wrong(f"{file}: [{name}] has both token and token_file", "--profile")
        with file.open("rb") as opened:
            _refuse_open_to_others(opened.fileno(), file, "--profile")
    return Layer(
        source=f"profile {name}",
        url=members.get("url"),
        token=members.get("token"),
        token_file=_beside(file, members.get("token_file")),
        ca_file=_beside(file, members.get("ca_file")),
        is_profile=True,
    )


def _beside(file: Path, named: str | None) -> Path | None:
    """A path as a profile names it: from the directory of its file, `~` being the user's."""
    return None if named is None else file.parent / Path(named).expanduser()


def _refuse_open_to_others(descriptor: int, file: Path, named: str) -> None:
    about = os.fstat(descriptor)
    # What comes through a pipe is nobody else's; other systems say nothing by modes.
    if os.name == "posix" and S_ISREG(about.st_mode) and S_IMODE(about.st_mode) & _OTHERS:
        raise _wrong(f"others can read the token in {file}; run: chmod 600 {file}", named)


def _wrong(sentence: str, named: str) -> typer.BadParameter:
    return typer.BadParameter(sentence, param_hint=named)
