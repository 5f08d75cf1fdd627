"""What a server of an earlier release left when it was killed is served by this one.

`golden/release/data_dir.tar.gz` was made by commit 07a6322 (`golden/release/make.py`), the last
before a review that changed much of the code but no byte of version 1. It holds a stream with a
tall tree and a trimmed beginning, one whose records came in every way that has an identity, one
that only the disk knows, and one that is deleted.
"""

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from golden.release.make import APPENDS, HERE, SETTINGS, all_of
from support.contract import Stream
from support.ports import lasting_ports
from support.server import AllInOne
from support.waiting import until

NUMBERED: Final = ("sequence", "txn")


@pytest.mark.parametrize("coordination", ["kept", "lost"])
def test_a_directory_of_an_earlier_release_is_read_and_appended_to(
    tmp_path: Path, coordination: str
) -> None:
    with tarfile.open(HERE / "data_dir.tar.gz") as packed:
        packed.extractall(tmp_path)
    expected = json.loads((HERE / "expected.json").read_text())
    server = AllInOne(tmp_path / "data", SETTINGS, *lasting_ports(1))
    if coordination == "lost":
        shutil.rmtree(server.data_dir / "valkey")
    with server, server.client() as client:
        if coordination == "lost":
            rebuild(client)
        for name, stored in expected["streams"].items():
            serves(client, name, stored)
        assert client.get("/v1/streams/gone").status_code == httpx.codes.NOT_FOUND
        billing = client.get("/v1/streams/orders/consumers/billing/offset").json()
        assert billing["offset"] == 123
        for name in NUMBERED:
            answer = client.post(
                "/v1/streams/payments/records",
                headers=APPENDS[name] | {"content-type": "application/octet-stream"},
                content=name,
            )
            assert answer.is_success, answer.text
            assert answer.headers["idempotent-replayed"] == "true"
            assert answer.json()["first_offset"] == expected["answers"][name]["first_offset"]
        server.kill()
        server.start()
        for name, stored in expected["streams"].items():
            again = all_of(client, name)
            assert again["records"][:-1] == stored["records"], name
            assert again["records"][-1]["value"] == "of this release", name


def rebuild(client: httpx.Client) -> None:
    begun = client.post("/v1/admin/rebuild")
    assert begun.status_code == httpx.codes.ACCEPTED, begun.text
    path = f"/v1/operations/{begun.json()['operation_id']}"
    until(lambda: client.get(path).json()["state"] == "succeeded", what="the rebuild")
    until(lambda: client.get("/readyz").is_success, what="a server that is ready")


def serves(client: httpx.Client, name: str, stored: dict[str, Any]) -> None:
    """Every record is there, and the next one gets the next offset."""
    stream = Stream(client, name)
    until(lambda: stream.get("first").status_code == httpx.codes.OK, what="an owner")
    assert all_of(client, name) == stored
    assert stream.append("of this release")["first_offset"] == stored["next_offset"]
