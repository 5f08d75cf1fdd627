"""Leaderless streams: what coordination keeps of their tails and writers, and what changes it. Pure."""
