"""The ledger: which messages are in which queue, where their bytes lie, and in which state each is."""
