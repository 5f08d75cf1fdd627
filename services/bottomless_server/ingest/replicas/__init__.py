"""Replicas of streams: logs here that follow those of other nodes, and what is sent to such logs."""
