"""A server with something of everything, so that requests made up by chance reach what is there."""

from typing import Final

import httpx
from support.contract import QUICK, Stream
from support.waiting import until

STREAMS: Final = ("orders", "audit")
DOOMED: Final = ("doomed-0", "doomed-1")
"""To be deleted, and put again."""

Known = dict[str, list[str | int]]
"""Names, ids and numbers that lead to something, by kind."""


def seed(client: httpx.Client) -> Known:
    """Fill a fresh server, and say with what."""
    known: Known = {
        "streams": [*STREAMS],
        "doomed": [*DOOMED],
        "consumers": ["billing"],
        "producers": ["loader-7"],
        "offsets": [0, 1, 4],
        "specs": ["first", "last", "next", "0", "3", "tail:2", "interval:1h", "stored"],
        "stream_ids": [],
        "etags": [],
        "fragments": [],
        "leases": [],
        "operations": [],
        "keys": [],
        "groups": ["auditors"],
        "supers": ["events"],
        "queues": ["tasks"],
        "members": [],
    }
    made = client.post("/v1/keys", json={"scopes": ["read:audit"]})
    assert made.status_code == 201, made.text
    known["keys"].append(made.json()["key_id"])
    made = client.put("/v1/queues/tasks", json={})
    assert made.status_code == 201, made.text
    made = client.put("/v1/super-streams/events", json={"partitions": 3})
    assert made.status_code == 201, made.text
    for name in (*STREAMS, *DOOMED):
        created = client.put(f"/v1/streams/{name}", json=QUICK)
        assert created.status_code == 201, created.text
        stream = Stream(client, name)
        numbered = client.post(
            stream.records,
            json={"records": [{"value": "a"}, {"json": {"b": 1}}, {"value_base64": "/w=="}]},
            headers={"Producer-Id": "loader-7", "Producer-Seq": "0"},
        )
        assert numbered.status_code == 200, numbered.text
        stream.append("d", "e")
        stream.wait_uploaded()
        stream.append("f")
        stored = client.put(f"{stream.path}/consumers/billing/offset", json={"offset": 2})
        assert stored.status_code == 200, stored.text
        if name in STREAMS:
            _describe(stream, known, created)
    for name in STREAMS:
        _let_settle(Stream(client, name))
    return known


def _let_settle(stream: Stream) -> None:
    """Wait for what becomes different by itself, so that tests see what requests change."""
    stream.wait_uploaded()
    path = f"{stream.path}/consumers/billing/offset"
    until(lambda: stream.client.get(path).json()["durability"] == "snapshot", what="the snapshot")


def _describe(stream: Stream, known: Known, created: httpx.Response) -> None:
    client = stream.client
    known["stream_ids"].append(created.json()["stream_id"])
    known["etags"].append(created.headers["etag"])
    joined = client.post(f"{stream.path}/groups/auditors/members", json={"member": "pod-a"})
    known["members"].append(joined.json()["member_id"])
    listed = client.get(f"{stream.path}/fragments").json()["fragments"]
    known["fragments"] += [fragment["id"] for fragment in listed]
    lease = client.post(f"{stream.path}/leases", json={"first_offset": 0, "ttl_seconds": 3600})
    known["leases"].append(lease.json()["lease_id"])
    operation = client.post(f"{stream.path}/manifest/verify").json()["operation_id"]
    known["operations"].append(operation)

    def done() -> bool:
        state: str = client.get(f"/v1/operations/{operation}").json()["state"]
        return state in ("succeeded", "failed")

    until(done, what="the operation")
