"""Rounds of a tool or a start that has a store to itself: their log stays short, however many there are."""

from pathlib import Path

import pytest

from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.ledger.sqlite import SqliteLedger
from bottomless_server.queues.store import alone

LOG_BYTES_MAX = 40_000


def test_the_log_of_many_rounds_is_checkpointed_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alone, "LOG_BYTES_MAX", LOG_BYTES_MAX)
    ledger = SqliteLedger(tmp_path / "ledger.db", RealFileCalls(), bytes(16))
    lengths = []
    for number in range(30):
        with alone.a_round(ledger):
            ledger.create_queue(number.to_bytes(16), "default", f"queue-{number}", "{}")
        lengths.append(ledger.log_size)
    ledger.close()
    assert 0 < max(lengths) <= LOG_BYTES_MAX
    assert lengths.count(0) > 1
    again = SqliteLedger(tmp_path / "ledger.db", RealFileCalls(), bytes(16))
    assert again.queue_count("default") == 30
    again.close()
