"""Homes of queues: on which node the queues of a tenant are, and how another one becomes it."""
