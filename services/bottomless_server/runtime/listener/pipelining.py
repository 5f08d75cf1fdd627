"""Requests that come on one connection before those in front of them are answered.

So many may wait, and then nothing is read until half of them are answered. The parser tells of
requests only as it is fed, so bytes that may hold too many are fed in small pieces.
"""

import asyncio
from typing import Final

from uvicorn.protocols.http.flow_control import FlowControl

from bottomless.model.limits import KIB

PIPELINE_COUNT_MAX: Final = 100
"""Requests of one connection that wait for the one before them; then it is read no further, until
half of them are answered."""
PIPELINE_PIECE_SIZE: Final = KIB
"""What may hold too many requests is read in such pieces: so many bytes of them are too many."""
_HEAD_END: Final = b"\r\n\r\n"
_SEARCHED_SIZE: Final = 16 * KIB
"""So many bytes are searched for the ends of heads in less time than the parser needs to be called."""


def piece_size(data: bytes | memoryview, waiting_count: int) -> int:
    """In pieces of which size these bytes are fed to the parser, where so many requests wait.

    What looks like the end of a head may be part of a body too. It is counted once for all of
    the bytes: a body may be full of them.
    """
    if len(data) <= PIPELINE_PIECE_SIZE:
        return PIPELINE_PIECE_SIZE
    if waiting_count + bytes(data).count(_HEAD_END) <= PIPELINE_COUNT_MAX:
        return len(data)
    return PIPELINE_PIECE_SIZE


def head_size(data: bytes | memoryview) -> int:
    """How much of many bytes is fed first, since its end looks like that of a head; 0: nothing does.

    The head may say that all the rest is its body, which need not be searched then: a search of a body
    takes many times as long as its checksum.
    """
    if len(data) < _SEARCHED_SIZE:
        return 0
    found = bytes(data[:PIPELINE_PIECE_SIZE]).find(_HEAD_END)
    return 0 if found < 0 else found + len(_HEAD_END)


class HeldFlow(FlowControl):
    """Uvicorn's, which begins to read again with every answer and every body that is asked for."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_held = False

    def hold(self) -> None:
        """Read nothing until `let_go`."""
        self._is_held = True
        self.pause_reading()

    def let_go(self) -> None:
        self._is_held = False

    def resume_reading(self) -> None:
        if not self._is_held:
            super().resume_reading()
