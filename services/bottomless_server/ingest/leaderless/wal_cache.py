"""The newest WAL objects of this node, in memory: a short cut for those who read tails.

An object enters once it is durable, so what is given here lies in the store as well. The oldest
makes room for the newest; one that is larger than the whole cache does not enter.
"""

from collections.abc import Iterable

from bottomless.model.names import Uid


class WalCache:
    """Bytes of WAL objects, the oldest first; at most `size_max` bytes of them."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._objects: dict[tuple[Uid, int], bytes] = {}
        self.size = 0
        """Bytes of all objects in it."""
        self.found_count = self.missed_count = 0
        """Ranges that were asked for and are here, and those of objects that are not."""

    def add(self, instance: Uid, sequence: int, parts: Iterable[bytes | memoryview]) -> None:
        """Keep an object that is durable."""
        # Joined: parts would hold all of the bodies that they are views of.
        data = b"".join(parts)
        if len(data) > self._size_max:
            return
        self._objects[instance, sequence] = data
        self.size += len(data)
        while self.size > self._size_max:
            oldest = next(iter(self._objects))
            self.size -= len(self._objects.pop(oldest))

    def find(self, instance: Uid, sequence: int, start: int, size: int) -> memoryview | None:
        """A range of an object, shorter where the object ends before; None if it is not here."""
        data = self._objects.get((instance, sequence))
        if data is None:
            self.missed_count += 1
            return None
        self.found_count += 1
        return memoryview(data)[start : start + size]
