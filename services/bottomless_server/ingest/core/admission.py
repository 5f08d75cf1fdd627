"""Bound the bytes of appends that are being received, waiting or written."""

from bottomless.model.names import StreamId


class Admission:
    """Counts bytes per stream and in all; says whether more fit. Waiting is the caller's."""

    def __init__(self, stream_size_max: int, total_size_max: int) -> None:
        self._stream_size_max = stream_size_max
        self._total_size_max = total_size_max
        self._held: dict[StreamId, int] = {}
        self._total = 0

    @property
    def total(self) -> int:
        return self._total

    def take(self, stream_id: StreamId, size: int, own: int = 0) -> bool:
        """Take room for `size` bytes; False if there is none now.

        What is larger than a bound passes alone: it must pass at some time. `own` bytes are
        held by the same body already, which is not in its own way.
        """
        held = self._held.get(stream_id, 0)
        if held > own and held + size > self._stream_size_max:
            return False
        if self._total > own and self._total + size > self._total_size_max:
            return False
        if size:
            self._held[stream_id] = held + size
            self._total += size
        return True

    def give_back(self, stream_id: StreamId, size: int) -> None:
        rest = self._held.get(stream_id, 0) - size
        self._total -= size
        assert rest >= 0
        assert self._total >= 0
        if rest:
            self._held[stream_id] = rest
        else:
            self._held.pop(stream_id, None)
