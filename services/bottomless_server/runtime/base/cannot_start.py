"""Why a process does not start."""


class CannotStart(Exception):
    """A service cannot start; the message is one sentence that says what to change."""
