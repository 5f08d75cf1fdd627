"""Writing all parts, however little the system takes at a time."""

import os
from pathlib import Path

import pytest

from bottomless_server.drives.drive_calls import DriveCalls


@pytest.mark.parametrize("at_once", [1, 3, 7, 100_000])
def test_short_writes_are_continued_where_they_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    def short(file: int, parts: list[memoryview]) -> int:
        return os.write(file, b"".join(parts)[:at_once])

    monkeypatch.setattr(os, "writev", short)
    parts = [b"one", b"", b"twotwo", b"x", b"three"]
    calls = DriveCalls()
    file = calls.create(tmp_path / "file")
    calls.write(file, [memoryview(part) for part in parts])
    os.close(file)

    assert (tmp_path / "file").read_bytes() == b"".join(parts)


def test_more_parts_than_one_call_takes_are_all_written(tmp_path: Path) -> None:
    calls = DriveCalls()
    file = calls.create(tmp_path / "file")
    calls.write(file, [memoryview(b"ab")] * 3000)
    os.close(file)

    assert (tmp_path / "file").read_bytes() == b"ab" * 3000
