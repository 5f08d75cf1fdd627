"""TI1, TI2, TI5: a policy over two directories and S3, in one process that dies between two steps.

Of a run of everything TI5 alone (soak/left_out.py); test_tiered_streams.py does a little of the others.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import httpx
import pytest
from support.contract import Stream
from support.lost_coordination import await_loss, flush, rebuild
from support.s3 import S3Server
from support.tiered import (
    EACH,
    Tiers,
    ask,
    by_bytes,
    done,
    everything,
    fill,
    give,
    id_of,
    orphan,
    running_tiers,
    size_of,
)
from support.waiting import until

from bottomless_server.runtime.base.fault_points import POINTS

POLICY: Final = {"BOTTOMLESS_MANIFEST_TIER_INTERVAL_MS": "100"}


@pytest.fixture(scope="module")
def tiers(tmp_path_factory: pytest.TempPathFactory, seaweed: S3Server) -> Iterator[Tiers]:
    folder = tmp_path_factory.mktemp("tiers")
    with running_tiers(folder, seaweed, "cold", **POLICY) as running:
        yield running


def test_fragments_move_by_bytes_and_by_age_and_new_ones_go_to_the_first_tier(
    tiers: Tiers,
) -> None:
    """TI1."""
    with tiers.server.client() as client:
        stream = tiers.filled(client, 6)
        before = everything(stream)
        assert tiers.where(stream) == ["default"] * 6
        give(stream, tiers=by_bytes(stream))
        tiers.wait_where(stream, "cold", "cold", "shelf", "shelf", "default", "default")
        tiers.wait_tidy(stream)
        assert everything(stream) == before

        # By both limits, of which the one that leaves less counts: the newest is never too old.
        both = {"drive": "shelf", "max_age": "1s", "max_bytes": "1 GiB"}
        give(stream, tiers=[both, {"drive": "cold"}])
        fill(stream, 1)
        tiers.wait_where(stream, *["cold"] * 6, "shelf")


POINTS_OF_MOVES: Final = (
    "manifest.tiers.after-enter",
    "uploader.move.after-claim",
    "uploader.move.after-copies",
    "uploader.move.after-finish",
    "manifest.deleter.after-claim",
)


def test_there_is_a_death_at_every_point_of_a_move() -> None:
    of_moves = ("manifest.tiers.", "uploader.move.", "manifest.deleter.after-claim")
    assert {point for point in POINTS if point.startswith(of_moves)} == set(POINTS_OF_MOVES)


@pytest.mark.parametrize("point", POINTS_OF_MOVES)
def test_a_move_whose_process_died_is_ended_after_it(tiers: Tiers, point: str) -> None:
    """TI2."""
    with tiers.server.client() as client:
        stream = tiers.filled(client, 3)
        stream_id, before = id_of(stream), everything(stream)
        newest = {"drive": "default", "max_bytes": size_of(stream, 2, 3)}
        tiers.server.arm(point)
        # The process may be dead before it has answered: what it died of follows from these requests.
        # The timer is not waited for, since a process that died before may still hold its lease.
        with suppress(httpx.TransportError):
            give(stream, tiers=[newest, {"drive": "cold"}])
            ask(client, "POST", f"{stream.path}/tiers/evaluate")
    tiers.server.wait_dead_at_fault_point()
    tiers.let_sessions_lapse(stream_id)
    tiers.server.start()
    with tiers.server.client() as client:
        stream = Stream(client, stream.name)
        tiers.wait_where(stream, "cold", "cold", "default")
        tiers.wait_tidy(stream)
        assert everything(stream) == before


def test_all_that_removes_and_all_that_looks_goes_through_three_drives(tiers: Tiers) -> None:
    """TI5."""
    with tiers.server.client() as client:
        stream = tiers.filled(client, 6)
        stream_id = id_of(stream)
        give(stream, tiers=by_bytes(stream))
        tiers.wait_where(stream, "cold", "cold", "shelf", "shelf", "default", "default")
        verified = done(client, f"{stream.path}/manifest/verify", {"checksums": True})
        assert (verified["sound"], verified["fragments"]) == (True, 6), verified

        ask(client, "POST", f"{stream.path}/trim", {"before_offset": EACH})
        tiers.wait_where(stream, "cold", "shelf", "shelf", "default", "default")
        give(stream, retention={"max_bytes": size_of(stream, 2, 5)})
        tiers.wait_where(stream, "shelf", "default", "default")
        tiers.wait_tidy(stream)
        before = everything(stream)

        stray = orphan(tiers, stream)
        asked = {"dry_run": False, "minimum_age": "1s", "stream": stream.name}
        until(
            lambda: done(client, "/v1/admin/gc", asked) and not stray.exists(),
            what="garbage collected from the shelf",
        )

        flush(tiers.coordination_url)
        await_loss(client)
        rebuild(client)
        tiers.wait_where(stream, "shelf", "default", "default")
        assert everything(stream) == before
        ask(client, "DELETE", stream.path)
        until(lambda: not tiers.objects(stream_id), what="nothing left of the stream")
