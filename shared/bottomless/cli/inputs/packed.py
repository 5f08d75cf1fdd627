"""Packed input: files whose names say that they are compressed, unpacked as they are read."""

import gzip
import io
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from bottomless.errors import Code, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined]

GZIP: Final = ".gz"
ZSTD: Final = ".zst"
SUFFIXES: Final = (GZIP, ZSTD)

_PIECE_SIZE: Final = 256 * 1024


class _Unpacked(io.RawIOBase):
    """A stream that has no descriptor: what lies there is not what is read."""

    def __init__(self, inner: Any, packed: BinaryIO) -> None:
        self._inner = inner
        self._packed = packed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "Buffer") -> int:
        view = memoryview(buffer)
        try:
            piece = self._inner.read(len(view))
        except (OSError, EOFError, zlib.error) as error:
            raise InvalidRequest(
                "the input is not compressed as its name says, or is cut short",
                code=Code.VALIDATION_FAILED,
            ) from error
        view[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            self._packed.close()
        super().close()


def opened(path: Path) -> BinaryIO:
    """Open a file to read, unpacked where its name says that it is compressed."""
    source = path.open("rb")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        return source
    inner: Any
    if suffix == GZIP:
        inner = gzip.GzipFile(fileobj=source)
    else:
        import pyarrow as pa  # noqa: PLC0415

        inner = pa.CompressedInputStream(cast("Any", source), "zstd")
    return io.BufferedReader(_Unpacked(inner, source), _PIECE_SIZE)
