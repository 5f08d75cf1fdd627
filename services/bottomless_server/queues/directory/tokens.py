"""What a directory of queues knows of starts: by it manifest tells the newest copy from older ones.

    start.json    {"tokens": [of the newest start before this one, of this one], "accept_loss": false}

It is replaced as a whole before a start is entered anywhere: after a crash the newest start is one of
those in it. A copy of the directory has it, too, until another start on either of them.
"""

from pathlib import Path
from typing import Final, NamedTuple

import orjson

from bottomless.errors import InvalidRequest
from bottomless.formats.checks import check, corrupt
from bottomless.model.names import parse_uid
from bottomless_server.node.file_calls import FileCalls, read_file, replace_file

START: Final = "start.json"
_SIZE_MAX: Final = 4_096
_WHAT: Final = "start.json"


class Tokens(NamedTuple):
    """What a directory knows of starts."""

    known: tuple[str, ...] = ()
    """Tokens of starts, one of which is the newest unless there was a later one on another copy."""
    accept_loss: bool = False
    """Whether an operator has said that this directory is to be the newest, whatever it lacks."""


def load_tokens(files: FileCalls, directory: Path) -> Tokens:
    """What a directory knows; nothing where no start was ever let in on it.

    Raises:
        Corrupt: the file is not what was written.
        OSError: the disk does not work.
    """
    if START not in files.names(directory):
        return Tokens()
    try:
        said = orjson.loads(read_file(files, directory / START, _SIZE_MAX))
        known = tuple(str(parse_uid(token)) for token in said["tokens"])
        accept_loss = said["accept_loss"]
    except (orjson.JSONDecodeError, KeyError, TypeError, InvalidRequest) as error:
        raise corrupt(_WHAT, "it does not name tokens of starts") from error
    check(_WHAT, type(accept_loss) is bool, "it does not say whether a loss is accepted")
    return Tokens(known, accept_loss)


def store_tokens(files: FileCalls, directory: Path, tokens: Tokens) -> None:
    """Let a directory know tokens, durably; after a crash it has these or those of before.

    Raises:
        OSError: the disk does not work.
    """
    said = {"tokens": list(tokens.known), "accept_loss": tokens.accept_loss}
    replace_file(files, directory / START, orjson.dumps(said))
