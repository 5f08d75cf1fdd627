"""Rounds: changes of many are written, synced and committed together, one round after the other."""
