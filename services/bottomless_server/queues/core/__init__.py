"""Decisions about messages in queues, without a clock, a file or a database: pure."""
