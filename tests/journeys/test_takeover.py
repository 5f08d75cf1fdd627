"""A disk is lost for good, and an operator accepts the loss: scenario M17.

What object storage holds stays readable, what only the disk held is a gap, and no offset
that the disk may have acknowledged is used again.
"""

import shutil
from pathlib import Path

import httpx
from support.contract import first_offset_once_taken, problem_of
from support.server import AllInOne
from support.waiting import until

SETTINGS = {
    "BOTTOMLESS_INGEST_LEASE_MS": "4000",
    "BOTTOMLESS_INGEST_LEASE_MARGIN_MS": "500",
    "BOTTOMLESS_INGEST_RENEW_MS": "500",
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "100",
    "BOTTOMLESS_READER_ROOT_TTL_MS": "50",
}
PATH = "/v1/streams/orders"
SLOW = {"fragment": {"target_bytes": 65_536, "max_age_ms": 86_400_000}}
PREFIX = [f"{number:03d}" * 400 for number in range(100)]
"""More than one fragment of the smallest size."""


def append(client: httpx.Client, *values: str) -> httpx.Response:
    body = {"records": [{"value": value} for value in values]}
    return client.post(f"{PATH}/records", json=body)


def appended(client: httpx.Client, *values: str) -> int:
    """The offset of the first of them, as soon as the node owns the stream: its lease is short."""

    return first_offset_once_taken(lambda: append(client, *values))


def page(client: httpx.Client, offset: int | str) -> list[tuple[int, str]]:
    answer = client.get(f"{PATH}/records", params={"offset": offset, "limit": 1_000})
    assert answer.status_code == 200, answer.text
    return [(record["offset"], record["value"]) for record in answer.json()["records"]]


def test_after_an_accepted_loss_the_stream_goes_on_behind_a_gap(tmp_path: Path) -> None:
    with AllInOne(tmp_path / "data", SETTINGS) as server:
        with server.client() as client:
            client.put(PATH, json=SLOW).raise_for_status()
            assert appended(client, *PREFIX) == 0

            def stored() -> int:
                bounds = client.get(f"{PATH}/offsets").json()
                return int(bounds["object_store_next_offset"])

            until(stored, what="the first fragment in object storage")
            assert appended(client, "only on the disk") == len(PREFIX)
            end = stored()
            assert end <= len(PREFIX)
        server.kill()
        shutil.rmtree(server.ingest_dir)
        server.start()

        with server.client() as client:
            refused = append(client, "refused")
            problem_of(refused, 503, "not-owner")
            takeover = "/v1/admin/streams/orders/takeover"
            body = {"accept_loss": True, "expect_home": "0" * 32}
            body["expect_home"] = problem_of(client.post(takeover, json=body), 409, "home-live")[
                "home"
            ]

            def accepted() -> dict[str, str] | None:
                answer = client.post(takeover, json=body)
                return answer.json() if answer.status_code == 202 else None

            operation = f"/v1/operations/{until(accepted, what='the lease over')['operation_id']}"
            until(lambda: client.get(operation).json()["state"] == "succeeded", what="taken over")
            gap = client.get(operation).json()["result"]["gap"]
            assert (gap["first_offset"], gap["reason"]) == (end, "takeover")
            assert gap["next_offset"] > len(PREFIX)

            first = appended(client, "after")
            assert first == gap["next_offset"]
            assert page(client, first) == [(first, "after")]
            assert page(client, 0)[:end] == list(enumerate(PREFIX[:end]))
            across = client.get(f"{PATH}/records", params={"offset": 0, "limit": 1_000}).json()
            assert across["gaps"] == [gap]
            assert across["records"][-1]["offset"] == first
            inside = f"{PATH}/records?offset={end + 1}&on_out_of_range=error"
            problem = problem_of(client.get(inside), 410, "offset-trimmed")
            assert problem["readable_offset"] == first
            listed = client.get(f"{PATH}/fragments").json()["fragments"]
            (shown,) = [item for item in listed if item.get("gap") == "takeover"]
            assert (shown["first_offset"], shown["last_offset"] + 1) == (end, first)
