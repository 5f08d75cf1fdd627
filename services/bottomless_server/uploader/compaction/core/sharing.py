"""Shares of the shards, where several uploaders compact."""

from collections.abc import Collection

from bottomless_server.leaderless.tail import SHARD_COUNT


def share_of(seat: int, taken: Collection[int]) -> frozenset[int]:
    """The shards of the uploader that has this seat, where these seats are taken.

    Everybody who sees the same seats finds a share of its own, no two shares overlap, together they
    are all shards, and none is larger than another by more than one shard.
    `seat` counts as taken, whether or not it is among those that are.
    """
    seats = sorted({*taken, seat})
    place = seats.index(seat)
    return frozenset(range(place, SHARD_COUNT, len(seats)))
