"""Reading: what is found in the ledger between rounds, and messages by the places that rounds named."""
