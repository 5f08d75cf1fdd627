"""Queues: each message goes to one consumer, is acknowledged by itself, and its space comes back."""
