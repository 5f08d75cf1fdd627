"""Receipts: what a consumer shows to acknowledge a message, and whether it is good still.

    | store 4 | inside 8 | sequence 8 | deliveries 4 | message 6 |     as 40 characters, opaque

A receipt names one delivery of one item. It is good until the item is delivered again, or is gone.
`store` is of the ledger's own id: numbers begin again after a takeover or a rebuild, and a receipt of
the ledger before must not acknowledge what has its numbers now. `message` is of the message's id: a
directory that was put back from a back-up goes on under the same id of its store, and gives numbers
again to other messages.
"""

import re
import struct
from binascii import a2b_base64, b2a_base64
from enum import Enum
from typing import Final, NamedTuple

from bottomless.guards import guard

_RECEIPT: Final = struct.Struct(">4sQQI6s")
STORE_SIZE: Final = 4
MESSAGE_SIZE: Final = 6
RECEIPT_SIZE: Final = 40
"""Characters of a receipt."""
_TEXT: Final = re.compile(f"[A-Za-z0-9_-]{{{RECEIPT_SIZE}}}", re.ASCII)
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_PLAIN: Final = bytes.maketrans(b"-_", b"+/")
_NUMBER_MAX: Final = 2**63 - 1


class Receipt(NamedTuple):
    """One delivery of one item."""

    store: bytes
    """The first STORE_SIZE bytes of the id of the ledger that gave it."""
    inside: int
    sequence: int
    deliveries: int
    """How often the item had been delivered, with this delivery; from 1."""
    message: bytes
    """The last MESSAGE_SIZE bytes of the id of its message, which are random."""


class Verdict(Enum):
    """What a receipt is good for."""

    GOOD = "good"
    GONE = "gone"
    """The item is not in the queue any more, or never was."""
    STALE = "stale"
    """The item was delivered again since, and is somebody else's; or the receipt is of another ledger, or
    of this one at a time that a back-up took back."""


def write_receipt(receipt: Receipt) -> str:
    """The text of a receipt, which has no meaning for whoever gets it."""
    assert len(receipt.store) == STORE_SIZE
    assert len(receipt.message) == MESSAGE_SIZE
    return b2a_base64(_RECEIPT.pack(*receipt), newline=False).translate(_URL_SAFE).decode("ascii")


def read_receipt(text: str) -> Receipt | None:
    """A receipt by its text; None if no ledger can have given this one."""
    # Of these characters, so many of them, each text is another receipt: there is no padding.
    if _TEXT.fullmatch(text) is None:
        return None
    receipt = Receipt._make(_RECEIPT.unpack(a2b_base64(text.encode().translate(_PLAIN))))
    known = receipt.deliveries >= 1
    return receipt if known and max(receipt.inside, receipt.sequence) <= _NUMBER_MAX else None


@guard("the store in a receipt")
def is_of_store(receipt: Receipt, store_id: bytes) -> bool:
    """Whether the ledger with this id gave the receipt."""
    return receipt.store == store_id[:STORE_SIZE]


@guard("the message in a receipt")
def is_of_message(receipt: Receipt, msg_id: bytes) -> bool:
    """Whether the receipt was given for the message with this id."""
    return receipt.message == msg_id[-MESSAGE_SIZE:]


class There(NamedTuple):
    """The item that a receipt's numbers name now."""

    deliveries: int
    """How often it was delivered."""
    msg_id: bytes


def judged(receipt: Receipt, store_id: bytes, inside: int, there: There | None) -> Verdict:
    """What a receipt is good for in the queue whose items stand under `inside`; `there` is None where
    its numbers name no item of it.
    """
    if not is_of_store(receipt, store_id):
        return Verdict.STALE
    if receipt.inside != inside or there is None:
        return Verdict.GONE
    if not is_of_message(receipt, there.msg_id):
        return Verdict.STALE
    # More deliveries than there were is nothing that anybody was given.
    if receipt.deliveries > there.deliveries:
        return Verdict.GONE
    return Verdict.GOOD if receipt.deliveries == there.deliveries else Verdict.STALE
