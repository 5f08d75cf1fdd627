"""Local segments are lost before they were uploaded, and an operator accepts the hole."""

from pathlib import Path

import httpx
import pytest
from support.contract import problem_of
from support.server import AllInOne
from support.waiting import until

SETTINGS = {
    "BOTTOMLESS_INGEST_SEGMENT_SIZE_MAX": "65536",
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "100",
    "BOTTOMLESS_READER_ROOT_TTL_MS": "50",
}
PATH = "/v1/streams/orders"
SLOW = {"fragment": {"target_bytes": 64 * 1024 * 1024, "max_age_ms": 86_400_000}}
COUNT = 60


def append(client: httpx.Client, number: int) -> str:
    """Append a record; returns its time."""
    body = {"records": [{"value": f"{number:03d}".rjust(8_000)}]}
    return str(client.post(f"{PATH}/records", json=body).raise_for_status().json()["timestamp"])


def page(client: httpx.Client, offset: int | str, **more: str) -> httpx.Response:
    return client.get(f"{PATH}/records", params={"offset": offset, "limit": 1_000, **more})


def walk(client: httpx.Client, offset: int) -> list[str]:
    values: list[str] = []
    while True:
        found = page(client, offset, on_out_of_range="error").json()
        values += [record["value"].strip() for record in found["records"]]
        offset = found["next_offset"]
        if found["up_to_date"]:
            return values


@pytest.mark.parametrize("checkpoint", ["in what is left", "in what is lost"])
def test_behind_lost_segments_the_stream_goes_on_once_the_loss_is_accepted(
    tmp_path: Path, checkpoint: str
) -> None:
    """This test knew a checkpoint at the end of the log alone, where a few seconds of appends
    leave one only if it is told to; before that all of such a stream was 502, with no way out."""
    often = "4096" if checkpoint == "in what is left" else "1000000000"
    server = AllInOne(tmp_path / "data", {**SETTINGS, "BOTTOMLESS_INGEST_CHECKPOINT_BYTES": often})
    with server:
        with server.client() as client:
            client.put(PATH, json=SLOW).raise_for_status()
            times = [append(client, number) for number in range(COUNT)]
        server.kill()
        segments = sorted(server.ingest_dir.glob("streams/*/*.segment"))
        assert len(segments) > 3
        for lost in segments[:2]:
            lost.unlink()
            lost.with_suffix(".index").unlink(missing_ok=True)
        begins = int(segments[2].stem)
        server.start()

        with server.client() as client:
            append(client, COUNT)
            # An offset, or a time, of what is lost.
            for offset in (0, begins - 1, f"timestamp:{times[1]}"):
                lost_here = problem_of(page(client, offset), 502, "local-log-lost")
                assert (lost_here["first_offset"], lost_here["readable_offset"]) == (0, begins)
                assert lost_here["retryable"] is False
            # What is whole is read before anybody accepts anything.
            assert walk(client, begins) == [f"{number:03d}" for number in range(begins, COUNT + 1)]
            gap = "/v1/admin/streams/orders/gap"
            wrong = client.post(gap, json={"accept_loss": True, "next_offset": begins + 1})
            told = problem_of(wrong, 412, "offset-mismatch")
            assert (told["published_next"], told["local_first_offset"]) == (0, begins)
            accepted = client.post(gap, json={"accept_loss": True, "next_offset": begins})
            assert accepted.status_code == 202, accepted.text
            operation = f"/v1/operations/{accepted.json()['operation_id']}"
            until(lambda: client.get(operation).json()["state"] == "succeeded", what="the gap")
            made = {"first_offset": 0, "next_offset": begins, "reason": "local-log-lost"}
            assert client.get(operation).json()["result"]["gap"] == made

            def readable() -> dict[str, object] | None:
                answer = page(client, 0)
                found: dict[str, object] = answer.json()
                return found if answer.status_code == 200 else None

            across = until(readable, what="the stream readable")
            assert across["gaps"] == [made]
            since = page(client, f"timestamp:{times[1]}").json()
            assert (since["start_offset"], since["gaps"]) == (0, [made])
            assert since["records"] == across["records"]
            told = problem_of(page(client, 1, on_out_of_range="error"), 410, "offset-trimmed")
            assert told["readable_offset"] == begins
            values = walk(client, begins)
            assert values == [f"{number:03d}" for number in range(begins, COUNT + 1)]
            again = client.post(gap, json={"accept_loss": True, "next_offset": begins})
            problem_of(again, 412, "offset-mismatch")

        # A clean stop uploads what is left: nothing holds the uploader up any more.
        assert server.stop() == 0
        server.start()
        with server.client() as client:
            bounds = client.get(f"{PATH}/offsets").json()
            assert bounds["object_store_next_offset"] == bounds["next_offset"] == COUNT + 1
