"""The root key: the operator's credential, whose secret is in a file that the operator made.

It is what everything else begins with: with it the first keys are created, and it is good where
no other key can be asked for, since neither coordination nor the object store is needed to check
it. So the rebuild after a loss of coordination can be asked for with it.

The file is read at every look-up, of which a gate has one in some seconds: another file in its
place takes effect as fast as a revocation. Nothing of it is stored anywhere.
"""

import asyncio
import re
from pathlib import Path
from typing import Final

import structlog

from bottomless.model.api_key import hash_secret
from bottomless_server.runtime.base.cannot_start import CannotStart

log = structlog.get_logger(__name__)

ROOT_KEY_ID: Final = "root"
"""Never the id of a key that is created."""

_SECRET: Final = re.compile(r"(?!sk_)([A-Za-z0-9_-]{32,128})\s*", re.ASCII)
_READ_SIZE_MAX: Final = 4096
_DISTINCT_MIN: Final = 8
"""Random text of that length always has as many; what people type to fill it has not."""


class RootKey:
    def __init__(self, file: Path | None) -> None:
        self._file = file

    def check(self) -> None:
        """Find out at the start whether the file can be used.

        Raises:
            CannotStart
        """
        if self._file is None:
            return
        try:
            _secret_in(self._file)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise CannotStart(f"the file in BOTTOMLESS_ROOT_KEY_FILE: {reason}") from error

    async def sha256(self) -> str | None:
        """What the secret is checked against; None where there is no root key now."""
        if self._file is None:
            return None
        try:
            return hash_secret(await asyncio.to_thread(_secret_in, self._file))
        except (OSError, ValueError):
            # No reason in the log: it might hold a part of the secret.
            log.critical("the root key cannot be read any more, so it is refused")
            return None


def _secret_in(file: Path) -> str:
    with file.open("rb") as opened:
        data = opened.read(_READ_SIZE_MAX + 1)
    match = _SECRET.fullmatch(data.decode("ascii", "replace"))
    if match is None or len(data) > _READ_SIZE_MAX:
        raise ValueError(
            "it must hold 32 to 128 letters, digits, '-' and '_', without the sk_root_ before them"
        )
    if len(set(match[1])) < _DISTINCT_MIN:
        raise ValueError("what it holds does not look random; `openssl rand -hex 32` makes a key")
    return match[1]
