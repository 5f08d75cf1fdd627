"""Decide how much may be under way: fragments of one stream, and bytes of all streams.

Two bounds on one stream, because two parts that it feeds can be slow. The object store
holds uploads, which hold memory; the manifest holds fragments that it was told of but
has not applied, which cost little, but must not grow while one upload before them fails.
The waiting is in `../budget.py` and `../uploader.py`.
"""

import math
from collections import deque
from typing import Final

from bottomless.model.names import Uid

MARGIN: Final = 1.25
"""Chunks of one stream are not all of one size."""
UNAPPLIED_COUNT_MAX: Final = 64
"""Fragments of one stream cut and not yet in the manifest: what a restart may have to look at."""


class Window:
    """The fragments of one stream from their cut until the manifest has applied them."""

    def __init__(
        self, upload_count_max: int, unapplied_count_max: int = UNAPPLIED_COUNT_MAX
    ) -> None:
        assert upload_count_max > 0
        assert unapplied_count_max > 0
        self._upload_count_max = upload_count_max
        self._unapplied_count_max = unapplied_count_max
        self._uploading: set[Uid] = set()
        self._uploaded: set[Uid] = set()

    @property
    def has_room(self) -> bool:
        """Whether one more cut may be made; its fragments, one for each epoch, all start."""
        return (
            len(self._uploading) < self._upload_count_max
            and len(self._uploading) + len(self._uploaded) < self._unapplied_count_max
        )

    @property
    def empty(self) -> bool:
        return not self._uploading and not self._uploaded

    @property
    def uploading(self) -> frozenset[Uid]:
        """Intents whose objects may or may not exist."""
        return frozenset(self._uploading)

    @property
    def registering(self) -> bool:
        """Whether nothing is left but what is put and not applied yet."""
        return not self._uploading and bool(self._uploaded)

    def started(self, uid: Uid) -> None:
        assert uid not in self._uploading
        assert uid not in self._uploaded
        self._uploading.add(uid)

    def uploaded(self, uid: Uid) -> None:
        self._uploading.remove(uid)
        self._uploaded.add(uid)

    def applied(self, uid: Uid) -> None:
        self._uploaded.remove(uid)


class Budget:
    """Bytes fetched and not yet uploaded, over all streams; who asks first is served first.

    Tickets are the askers' names for their claims. Those that hold bytes never wait for
    more, so that no two of them can wait for each other: who cannot grow gives back what it has
    and asks again.
    """

    def __init__(self, size_max: int) -> None:
        assert size_max > 0
        self._size_max = size_max
        self._held: dict[int, int] = {}
        self._waiting: deque[tuple[int, int]] = deque()
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes held now."""
        return self._size

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def ask(self, ticket: int, size: int) -> list[int]:
        """Claim `size` bytes; returns the tickets that hold theirs from now on."""
        assert ticket not in self._held
        self._waiting.append((ticket, size))
        return self._serve()

    def charge(self, ticket: int, size: int) -> list[int]:
        """Set what a ticket holds to what it really took, without waiting.

        This is how the last chunk of a fetch, whose size nobody knows before, and the
        parts of a fetch that is split at an epoch's end are counted.
        """
        self._size += size - self._held.get(ticket, 0)
        self._held[ticket] = size
        return self._serve()

    def grow(self, ticket: int, size: int) -> bool:
        """Let a ticket hold so much, if more of it is free than others hold, or nobody else holds
        anything; returns whether it does."""
        held = self._held[ticket]
        if size > held and self._size > held and self._size + size - held > self._size_max:
            return False
        self._size += max(0, size - held)
        self._held[ticket] = max(size, held)
        return True

    def free(self, ticket: int) -> list[int]:
        """Give back what a ticket holds, or withdraw it if it still waits."""
        self._size -= self._held.pop(ticket, 0)
        self._waiting = deque(claim for claim in self._waiting if claim[0] != ticket)
        return self._serve()

    def check(self) -> None:
        assert self._size == sum(self._held.values())

    def _serve(self) -> list[int]:
        served = []
        while self._waiting and self._fits(self._waiting[0][1]):
            ticket, size = self._waiting.popleft()
            self._held[ticket] = size
            self._size += size
            served.append(ticket)
        return served

    def _fits(self, size: int) -> bool:
        # A fragment larger than the whole budget must still go through, alone.
        return self._size == 0 or self._size + size <= self._size_max


class Expected:
    """What the next fragment of one stream takes in memory while it is gathered, by what the last
    ones took: their bytes, or the headers of their chunks, which may be a thousandth of that.
    """

    def __init__(self, size_min: int) -> None:
        """`size_min` is what a fragment takes that is read while it is put."""
        self._size_min = size_min
        self._rate = 0.0
        """Bytes in memory for each byte of the log."""
        self._least = 0

    def size(self, max_bytes: int) -> int:
        """Bytes to ask for, for so many of the log."""
        held = min(max_bytes, math.ceil(MARGIN * self._rate * max_bytes))
        return max(min(max_bytes, self._size_min) + held, self._least)

    def took(self, held: int, size: int) -> None:
        """A fragment was cut, for which `held` bytes were in memory."""
        self._rate, self._least = held / size, 0

    def took_more(self, held: int, size: int) -> None:
        """What was gathered takes more than was asked for; the same is asked for again."""
        self._rate, self._least = held / size, held
