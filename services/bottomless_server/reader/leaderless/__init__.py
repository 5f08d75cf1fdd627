"""Tails of leaderless streams: read from coordination, and from WAL objects where they are."""
