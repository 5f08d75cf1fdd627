"""Outgoing: messages on their way from their queue to another, to where they were before, or to a stream."""
