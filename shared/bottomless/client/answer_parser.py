"""Answer parser: cuts the bytes of one HTTP/1.1 connection into whole answers. Pure.

Answers stand one after the other, in the order of their requests. It reads what RFC 9112 lets a
server send, and refuses everything else: two readings of one byte stream would give a request the
answer of another.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from bottomless.client.transport import ANSWER_SIZE_MAX, Answer

HEAD_SIZE_MAX: Final = 64 * 1024
"""Bytes of a status line with its headers, or of a chunk's first line with its extensions."""

_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n\0]*)?")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n\0]*)?")
_SIZE: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_STATUS_SIZE_MAX: Final = 1024
_END: Final = b"\r\n\r\n"
_BLANK: Final = " \t"
"""What may stand around a value. What Unicode takes for a space may not."""
_PIECE_SIZE: Final = 16 * 1024
"""A smaller piece of a body is copied to the one before it. An object for each would take many times
the body's bytes, if a server sends them one by one."""


class NotHttp(Exception):
    """What came is no answer of HTTP/1.1, or one that is longer than any of ours."""


class TooLong(NotHttp):
    """The body of an answer is longer than any of ours."""


class Headers(Mapping[str, str]):
    """Headers of an answer, looked up by names in upper or lower case."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, str]) -> None:
        """Take headers whose names are in lower case."""
        self._items = items

    def __getitem__(self, name: str) -> str:
        return self._items[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class AnswerParser:
    """Takes the bytes of one connection in any pieces, and gives the answers that they hold."""

    def __init__(self, size_max: int = ANSWER_SIZE_MAX) -> None:
        self._size_max = size_max
        self._given = bytearray()
        self._status = 0
        self._headers: Headers | None = None
        """The headers of the answer whose body is still to come."""
        self._body: list[bytes | bytearray] = []
        self._body_size = 0
        self._looked_at = 0
        """So many of the bytes of a head or a line that is not whole hold no end of it."""
        self._trailer_size = 0
        self._left: int | None = 0
        """Bytes that are still to come, of the body or of its present chunk; None: until the end
        of the connection."""
        self._in_chunks = False
        self._after_chunk = False
        """Whether the end of line after a chunk's bytes is awaited."""
        self._in_trailer = False
        self.last = False
        """Whether the server said that it closes the connection after the latest answer."""

    @property
    def begun(self) -> bool:
        """Whether a part of an answer has come, and not the whole of it."""
        return self._headers is not None or bool(self._given)

    def feed(self, data: bytes) -> Iterator[Answer]:
        """Give the answers that are whole with these bytes.

        Raises:
            NotHttp: that is no answer; nothing that comes after it can be understood.
        """
        if self._headers is None:
            self._given += data
        elif self._left is None or len(data) <= self._left:
            # Most of a long body: it is not moved twice.
            self._take(data)
        else:
            self._given += data
        while True:
            if self._headers is None and not self._read_head():
                return
            if not self._read_body():
                return
            yield self._whole()

    def end(self) -> Answer | None:
        """Give the answer whose body the end of the connection ended; None if there is none."""
        return self._whole() if self._headers is not None and self._left is None else None

    def _read_head(self) -> bool:
        while True:
            head = self._up_to(_END)
            if head is None:
                self._refuse_other_protocols()
                return False
            first, *rest = head.split(b"\r\n")
            found = _STATUS.fullmatch(first)
            if found is None:
                raise NotHttp
            version, self._status = found[1], int(found[2])
            if self._status == 101:
                raise NotHttp
            if self._status >= 200:
                break
            # Informational, such as 100 or 103: the answer comes after it.
        self._begin(version, _fields_of(rest))
        return True

    def _refuse_other_protocols(self) -> None:
        # They are not waited for until they have said 64 KiB; nor are ends of lines of another kind.
        line = self._given.find(b"\n", 0, _STATUS_SIZE_MAX)
        if not b"HTTP/1.".startswith(self._given[:7]) or (
            line >= 0 and self._given[line - 1] != 13
        ):
            raise NotHttp

    def _begin(self, version: bytes, fields: dict[str, str]) -> None:
        self._headers = Headers(fields)
        said = {word.strip(_BLANK).lower() for word in fields.get("connection", "").split(",")}
        self.last = "close" in said or (version == b"0" and "keep-alive" not in said)
        coding, size = fields.get("transfer-encoding"), fields.get("content-length")
        if self._status in (204, 304):
            self._left = 0
        elif coding is not None:
            # HTTP/1.0 has no chunks, so what stands before or after it may have seen none.
            if coding.lower() != "chunked" or size is not None or version == b"0":
                raise NotHttp
            self._in_chunks, self._left = True, 0
        elif size is not None:
            # One number, perhaps repeated.
            sizes = {each.strip(_BLANK) for each in size.split(",")}
            only = sizes.pop()
            if sizes or not _SIZE.fullmatch(only):
                raise NotHttp
            self._left = self._bounded(int(only))
        else:
            self._left, self.last = None, True

    def _read_body(self) -> bool:
        if not self._in_chunks:
            self._take_given()
            return self._left == 0
        while True:
            self._take_given()
            if self._left:
                return False
            line = self._up_to(b"\r\n")
            if line is None:
                return False
            if self._in_trailer:
                if not line:
                    return True
                self._trailer_size += len(line)
                if self._trailer_size > HEAD_SIZE_MAX:
                    raise NotHttp
            elif self._after_chunk:
                if line:
                    raise NotHttp
                self._after_chunk = False
            else:
                self._begin_chunk(line)

    def _begin_chunk(self, line: bytes) -> None:
        found = _CHUNK.fullmatch(line)
        if found is None:
            raise NotHttp
        size = int(found[1], 16)
        self._left = self._bounded(size)
        self._in_trailer, self._after_chunk = size == 0, size > 0

    def _up_to(self, end: bytes) -> bytes | None:
        """Take what stands before an end; None where that has not come yet."""
        found = self._given.find(end, self._looked_at)
        if found > HEAD_SIZE_MAX or (found < 0 and len(self._given) > HEAD_SIZE_MAX):
            raise NotHttp
        if found < 0:
            self._looked_at = max(0, len(self._given) - len(end) + 1)
            return None
        self._looked_at = 0
        taken = bytes(self._given[:found])
        del self._given[: found + len(end)]
        return taken

    def _take_given(self) -> None:
        size = len(self._given) if self._left is None else min(self._left, len(self._given))
        if size:
            self._take(bytes(self._given[:size]))
            del self._given[:size]

    def _take(self, data: bytes) -> None:
        if self._left is None:
            self._bounded(len(data))
        else:
            self._left -= len(data)
        self._body_size += len(data)
        before = self._body[-1] if self._body else b""
        if len(data) >= _PIECE_SIZE:
            self._body.append(data)
        elif isinstance(before, bytearray) and len(before) < _PIECE_SIZE:
            before += data
        else:
            self._body.append(bytearray(data))

    def _bounded(self, more: int) -> int:
        if self._body_size + more > self._size_max:
            raise TooLong
        return more

    def _whole(self) -> Answer:
        headers, body = self._headers, self._body
        assert headers is not None
        self._headers, self._body, self._body_size, self._left = None, [], 0, 0
        self._in_chunks = self._in_trailer = False
        self._trailer_size = 0
        return Answer(self._status, headers, b"".join(body))


def _fields_of(lines: list[bytes]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in lines:
        found = _FIELD.fullmatch(line)
        if found is None:
            raise NotHttp
        name, text = found[1].decode().lower(), found[2].decode("latin-1")
        fields[name] = f"{fields[name]}, {text}" if name in fields else text
    return fields
