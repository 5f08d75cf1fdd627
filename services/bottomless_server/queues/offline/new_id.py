"""Make a directory of queues the newest copy, by the word of an operator: the newer one is lost.

1. The store gets a new id, durably. So receipts that another copy handed out are stale here, and what
   leaves the queues goes to streams under another producer: numbers of this copy mean nothing of that one's.
2. The directory says that a loss is accepted. The next start is let in by that word, which counts once.

After a crash between both the directory is refused still; the same again is right.
"""

from bottomless_server.queues.directory.tokens import load_tokens, store_tokens
from bottomless_server.queues.ledger.base import ID_SIZE
from bottomless_server.queues.offline.store_directory import StoreDirectory
from bottomless_server.queues.store.alone import a_round
from bottomless_server.queues.store.import_mark import check_no_import


def give_new_id(store: StoreDirectory, fresh: bytes) -> None:
    """Let a store have the id `fresh`, and its next start be let in whatever the directory lacks.

    Raises:
        Refused: an import into the store was cut off.
        Corrupt: what the directory knows of starts cannot be read; it can be removed.
        OSError, LedgerFailed: the disk does not work, or the ledger is damaged.
    """
    assert len(fresh) == ID_SIZE
    check_no_import(store.files, store.path)
    tokens = load_tokens(store.files, store.path)
    ledger = store.open_ledger()
    try:
        with a_round(ledger):
            ledger.set_store_id(fresh)
        ledger.checkpoint()
    finally:
        ledger.close()
    store_tokens(store.files, store.path, tokens._replace(accept_loss=True))
