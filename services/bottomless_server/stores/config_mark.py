"""The mark of configurations: whether any stream's was changed since somebody looked.

bottomless:configs    random; another one in each EXEC that changes the configuration of a stream

Owners of streams have to hear of a PATCH, which changes a record alone. Whoever reads the mark, and
then the records, need not read them again while the mark is the same. Marks are compared for being
equal and for nothing else. It is written without being watched, so that changes of different streams
do not stand in each other's way.
"""

import secrets
from typing import Final

CONFIGS_KEY: Final = "bottomless:configs"
_MARK_SIZE: Final = 16


def new_config_mark() -> bytes:
    """Make a mark that was never there."""
    return secrets.token_hex(_MARK_SIZE).encode("ascii")
