"""The index of filter values in the real program: turned on in mid-stream, read, verified, restarted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from support.contract import QUICK, Stream, new_stream
from support.lost_coordination import await_loss, flush, rebuild
from support.places import COLD, FREEING, free_local
from support.server import AllInOne
from support.valkey import running_valkey
from support.waiting import until

SETTINGS: Final = {
    **FREEING,
    **COLD,
    "BOTTOMLESS_MANIFEST_OPERATION_INTERVAL_MS": "50",
    "BOTTOMLESS_MANIFEST_GENERATION_CHECK_MS": "100",
    "BOTTOMLESS_MANIFEST_REBUILD_WAL_WAIT_MS": "0",
    "BOTTOMLESS_INGEST_LEASE_MS": "4000",
    "BOTTOMLESS_INGEST_LEASE_MARGIN_MS": "500",
    "BOTTOMLESS_INGEST_RENEW_MS": "300",
}


def append(stream: Stream, value: str) -> None:
    """A fragment of three records: two with the value, one with none."""
    records: list[dict[str, Any]] = [{"value": value, "filter_value": value}] * 2
    answer = stream.client.post(stream.records, json={"records": [*records, {"value": "-"}]})
    assert answer.status_code == 200, answer.text
    stream.wait_uploaded()


def offsets(page: dict[str, Any]) -> list[int]:
    return [record["offset"] for record in page["records"]]


def patched(stream: Stream, change: dict[str, Any]) -> None:
    etag = stream.client.get(stream.path).headers["etag"]
    answer = stream.client.patch(stream.path, json=change, headers={"if-match": etag})
    assert answer.status_code == 200, answer.text


def formats(stream: Stream) -> list[str]:
    listed = stream.client.get(f"{stream.path}/fragments").json()["fragments"]
    return [item["format"][-1] for item in listed]


def sound(stream: Stream) -> None:
    answer = stream.client.post(f"{stream.path}/manifest/verify", json={"checksums": True})
    assert answer.status_code == 202, answer.text

    def result() -> dict[str, Any] | None:
        found: dict[str, Any] = stream.client.get(answer.headers["location"]).json()
        assert found["state"] != "failed", found
        done: dict[str, Any] | None = found["result"]
        return done

    report = until(result, what="the end of the verification")
    assert report["faults"] == []
    assert report["sound"]


def looked_up(stream: Stream, values: Sequence[str], skipped: int) -> list[int]:
    page = stream.page("first", filter=list(values))
    assert page["skipped_fragments"] >= skipped
    return offsets(page)


def test_an_index_is_turned_on_in_mid_stream_and_survives_a_kill_and_a_rebuild(
    tmp_path: Path,
) -> None:
    with (
        running_valkey(tmp_path / "valkey") as valkey,
        AllInOne(
            tmp_path / "data", {**SETTINGS, "BOTTOMLESS_COORDINATION_URL": valkey.url}
        ) as server,
    ):
        with server.client() as client:
            stream = new_stream(client, QUICK)
            append(stream, "early")
            patched(stream, {"filter": {"index": "values"}})
            assert client.get(stream.path).json()["filter"] == {"index": "values", "max_bytes": 256}
            for number in range(9):
                append(stream, f"v{number}")
            patched(stream, {"filter": None})
            append(stream, "late")
            free_local(server, stream)

            assert formats(stream) == ["1", *"2" * 9, "1"]
            assert looked_up(stream, ["v3"], skipped=8) == [12, 13]
            assert looked_up(stream, ["early", "late"], skipped=9) == [0, 1, 30, 31]
            assert looked_up(stream, ["nowhere"], skipped=9) == []
            sound(stream)
        server.kill()
        server.start()
        with server.client() as client:
            stream = Stream(client, stream.name)
            assert looked_up(stream, ["v3", "late"], skipped=8) == [12, 13, 30, 31]
            sound(stream)
            flush(valkey.url)
            await_loss(client)
            rebuild(client)
            # The owner takes its streams up again within seconds.
            path = f"{stream.records}?offset=first"
            until(lambda: client.get(path).status_code == 200, what="the owner")
            assert looked_up(stream, ["v3", "late"], skipped=8) == [12, 13, 30, 31]
            assert looked_up(stream, ["nowhere"], skipped=9) == []
            sound(stream)
