"""The refusal of what cannot be done while a super stream grows, where more than one floor gives it."""

from bottomless.errors import Code, Outcome, Unavailable


def super_growing() -> Unavailable:
    """The refusal of a request that would be divided as it is not any more."""
    return Unavailable(
        "the super stream gets more partitions; send the same again",
        code=Code.SUPER_STREAM_GROWING,
        outcome=Outcome.NONE,
        retry_after_seconds=1,
    )
