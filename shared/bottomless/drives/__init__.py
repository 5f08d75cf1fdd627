"""Drives: object stores behind one protocol. Everything above talks to `base.Drive` only."""
