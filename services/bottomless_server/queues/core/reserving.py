"""Sequences are reserved in the registry before they are used, so that a rebuilt ledger gives none twice."""

from typing import Final

from bottomless.guards import guard

BLOCK: Final = 2**20
AHEAD: Final = BLOCK // 2
"""So many are reserved at least after each publish: more than all publishes of one round have, since
the registry is written after the round, and what the round itself uses must be in it before."""


@guard("sequences are reserved before they are used")
def reserved_below(next_sequence: int, reserved: int) -> int | None:
    """Up to which sequence, exclusive, the registry has to reserve; None where it has enough.

    `next_sequence` is the one after a publish.
    """
    if reserved - next_sequence >= AHEAD:
        return None
    return (next_sequence // BLOCK + 2) * BLOCK
