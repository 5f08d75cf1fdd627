"""Compaction: rounds that turn WAL objects of leaderless streams into fragments. Never touches an owner."""
