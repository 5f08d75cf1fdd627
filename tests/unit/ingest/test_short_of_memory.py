"""Too little memory is no damage and nobody's fault: it passes."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]


def test_a_decoder_without_memory_finds_no_damage_and_its_client_may_come_again(
    tmp_path: Path,
) -> None:
    """Arrow's MemoryError is an ArrowException too, and was taken for a body that is not valid."""
    ended = subprocess.run(
        [sys.executable, "-m", "support.short_of_memory", str(tmp_path / "ingest")],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    told = dict(line.split(": ", 1) for line in ended.stdout.splitlines() if ": " in line)
    assert told.pop("append") == "503 overloaded none"
    assert told == dict.fromkeys(
        ("frame in ZSTD", "frame in LZ4", "body in zstd", "Arrow body"), "too little"
    )
