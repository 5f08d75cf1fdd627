"""The mark of an import that is not through: while it is there, the store is nobody's.

It lies beside the ledger. It is made before an import writes anything else, and goes, durably, after
everything else is durable: so a store without it is one that no import has touched, or a whole one.
"""

from pathlib import Path
from typing import Final

import orjson

from bottomless_server.node.file_calls import FileCalls, replace_file
from bottomless_server.queues.core.start_plan import Refused

MARK: Final = "import"


def check_no_import(files: FileCalls, directory: Path) -> None:
    """Refuse to use a store whose import was cut off.

    Raises:
        Refused: it says what to do.
    """
    if is_marked(files, directory):
        raise Refused(
            "an import into this store was cut off; run the same `bottomless queue-store "
            "import-rabbitmq` again, which begins anew"
        )


def is_marked(files: FileCalls, directory: Path) -> bool:
    return MARK in files.names(directory)


def set_mark(files: FileCalls, directory: Path, source: Path) -> None:
    """Mark a store, durably. After a crash there is the mark or none."""
    replace_file(files, directory / MARK, orjson.dumps({"source": str(source)}))


def remove_mark(files: FileCalls, directory: Path) -> None:
    """Say that the import is through. After a crash there is the mark, over a whole store, or none."""
    files.unlink(directory / MARK)
    files.fsync_dir(directory)
