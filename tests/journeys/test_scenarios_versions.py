"""What earlier code wrote, and the code of today: M51."""

import json
import shutil
from base64 import b64decode
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import pytest
from golden.regenerate import golden
from support.contract import Stream
from support.object_keys import fragment_key, registry_key, root_key
from support.places import COLD
from support.server import AllInOne
from support.waiting import until
from unit.formats.examples import OTHER_UID, STREAM_ID, TIMESTAMP, UID

from bottomless.formats.keys import generation_key
from bottomless.formats.manifest import encode_node
from bottomless.model.manifest import ENTRY_DTYPE, Node

SETTINGS: Final = {**COLD, "BOTTOMLESS_MANIFEST_OPERATION_INTERVAL_MS": "50"}
GOLDEN_HOME: Final = "0123456789abcdef0123456789abcdef"
"""The node that the registry object of the golden files names."""
OLD_FIRST: Final = 1040
GOLDEN_RECORDS: Final[dict[str, list[Any]]] = {
    # The floor of the golden root is behind the first record of its fragment.
    "the object store": ["bc", "a", "bc"],
    "a disk": ["a", "bc", "a", "bc", b"\0\xff", "text", {"id": 7}],
}
GOLDEN_FIRST: Final = {"the object store": OLD_FIRST + 1, "a disk": OLD_FIRST}


def empty_root() -> bytes:
    """Of a stream of which nothing was published yet, but that begins where the golden log does."""
    node = Node(
        stream_id=STREAM_ID,
        uid=UID,
        height=0,
        first_offset=OLD_FIRST,
        next_offset=OLD_FIRST,
        epoch=3,
        version=17,
        generation=1,
        last_timestamp=TIMESTAMP,
        entries=np.zeros(0, ENTRY_DTYPE),
    )
    return encode_node(node)


@pytest.mark.parametrize("tier", ["the object store", "a disk"])
def test_what_earlier_code_wrote_is_read_and_goes_on(tmp_path: Path, tier: str) -> None:
    """M51: bucket and disk are made of golden files, which no code writes anew.

    Only the root is today's: it has to name the objects that are there.
    """
    server = AllInOne(tmp_path / "data", SETTINGS)
    with server:
        assert server.stop() == 0
    shutil.rmtree(server.data_dir / "valkey")
    objects = {
        generation_key(1): b'{"generation":1}',
        registry_key(STREAM_ID, 2): golden("stream_registry"),
    }
    if tier == "a disk":
        objects[root_key(STREAM_ID, 1, 3, 17, UID)] = empty_root()
    else:
        objects[root_key(STREAM_ID, 1, 4, 17, OTHER_UID)] = golden("manifest_root")
        objects[fragment_key(STREAM_ID, OLD_FIRST, UID)] = golden("fragment")
    for key, data in objects.items():
        path = server.objects / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    if tier == "a disk":
        (server.ingest_dir / "node.json").write_text(json.dumps({"node_id": GOLDEN_HOME}))
        log = server.ingest_dir / "streams" / STREAM_ID
        log.mkdir(parents=True)
        (log / f"{OLD_FIRST:020d}.segment").write_bytes(golden("segment"))
        (log / f"{OLD_FIRST:020d}.index").write_bytes(golden("segment_index"))

    with server, server.client() as client:
        stream = Stream(client, "orders")
        finished(client, client.post("/v1/admin/rebuild"))
        if tier != "a disk":
            # The node that they name is not there: its stream is given to another.
            asked = {"accept_loss": True, "expect_home": GOLDEN_HOME}
            until(lambda: client.get("/readyz").is_success, what="the end of the rebuild")
            finished(client, client.post("/v1/admin/streams/orders/takeover", json=asked))
        until(lambda: stream.get("first").status_code == 200, what="an owner")
        assert client.get(stream.path).json()["retention"]["max_age"] == "7D"
        first = stream.page("first")
        found = [(one["offset"], value_of(one)) for one in first["records"]]
        assert found == list(enumerate(GOLDEN_RECORDS[tier], GOLDEN_FIRST[tier]))
        assert stream.append("new")["first_offset"] >= first["next_offset"]
        [last] = stream.page("last")["records"]
        assert last["value"] == "new"


def finished(client: httpx.Client, begun: httpx.Response) -> None:
    assert begun.status_code == 202, begun.text
    path = f"/v1/operations/{begun.json()['operation_id']}"
    until(lambda: client.get(path).json()["state"] == "succeeded", what="an operation")


def value_of(record: dict[str, Any]) -> Any:
    if "value_base64" in record:
        return b64decode(record["value_base64"])
    return record["json"] if "json" in record else record["value"]
