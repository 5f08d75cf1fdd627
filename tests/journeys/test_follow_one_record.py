"""One record, ten stops: the same ten as docs/one-record.md, each looked at from outside.

The processes are the real ones; files and objects are opened with the formats, not with
the services' own code, so that what is promised on disk is what is checked. Where the
services run apart, each is killed and started again after the stop that it is known for.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pyspark.sql import SparkSession
from support.deployment import DEPLOYMENTS, Deployment
from support.spark_session import worker_environment
from support.waiting import until

from bottomless.formats import fragment as fragment_format
from bottomless.formats.batch import decode_frames
from bottomless.formats.checks import crc32c
from bottomless.formats.chunk import batches_of, decode_trailer, split_chunks, trailer_of
from bottomless.formats.manifest import decode_node
from bottomless.formats.segment import HEADER_SIZE as SEGMENT_HEADER_SIZE
from bottomless.formats.segment import decode_segment_header
from bottomless.model.manifest import fragment_info

STREAM = "/v1/streams/orders"
RECORD = {"json": {"id": 7, "total": 12.5}, "key": "cust-9", "headers": {"type": "order"}}
VALUE = b'{"id":7,"total":12.5}'
SETTINGS = {"BOTTOMLESS_MANIFEST_FANOUT": "4", "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "500"}


def only(found: list[Path]) -> Path:
    assert len(found) == 1, found
    return found[0]


@pytest.fixture(params=sorted(DEPLOYMENTS))
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    with DEPLOYMENTS[request.param](request, tmp_path, SETTINGS) as running:
        yield running


def dies_and_returns(deployment: Deployment, name: str) -> None:
    if name in deployment.names:
        deployment.kill(name)
        deployment.start()


def test_follow_one_record(deployment: Deployment, spark: SparkSession) -> None:
    with deployment.client() as client:
        # 1. The contract: a stream, and a request that appends to it.
        created = client.put(STREAM, json={"fragment": {"max_age_ms": 2000}})
        assert created.status_code == httpx.codes.CREATED
        stream_id = created.json()["stream_id"]

        # 2. ingest/routes takes it, 3. the batcher gives it an offset and a time.
        answer = client.post(f"{STREAM}/records", json={"records": [RECORD]}).json()
        assert (answer["first_offset"], answer["next_offset"], answer["count"]) == (0, 1, 1)

        # 4. It became a chunk, and 5. the appender made that durable before it answered.
        segment = only(list(deployment.ingest_dir.rglob(f"{stream_id}/*.segment")))
        raw = segment.read_bytes()
        assert decode_segment_header(raw[:SEGMENT_HEADER_SIZE]).stream_id == stream_id
        header, chunk = next(split_chunks(raw[SEGMENT_HEADER_SIZE:]))
        assert (header.first_offset, header.record_count, header.epoch) == (0, 1, 1)
        row = decode_frames(batches_of(header, chunk))[0].to_pylist()[0]
        assert (row["value"], row["key"]) == (VALUE, b"cust-9")
        assert [entry.record_count for entry in decode_trailer(trailer_of(header, chunk))] == [1]
        stored = bytes(chunk)

        # Readers see it at once, from the tail.
        page = client.get(f"{STREAM}/records", params={"offset": "first"}).json()
        assert page["records"][0]["json"] == RECORD["json"]
        dies_and_returns(deployment, "ingest")

        # 6. The uploader cuts it into a fragment when it is old enough, 7. as one object.
        dies_and_returns(deployment, "uploader")
        until(lambda: uploaded_next(client) == 1, what="the fragment")
        fragment_key = only(objects(deployment, "*.fragment"))
        blob = deployment.stored.read(str(fragment_key))
        fragment = fragment_format.decode_fragment_header(blob[: fragment_format.HEADER_SIZE])
        assert (fragment.stream_id, fragment.first_offset, fragment.next_offset) == (
            stream_id,
            0,
            1,
        )
        assert blob[fragment_format.HEADER_SIZE :].startswith(stored), "bytes changed on the way"

        # 8. The manifest names it: root → entry → object, checksum by checksum.
        newest_root = max(objects(deployment, "root.*.manifest"))
        root = decode_node(deployment.stored.read(str(newest_root)))
        entry = fragment_info(root.entries[0])
        assert (root.next_offset, entry.uid, entry.crc) == (1, fragment.uid, crc32c(blob))
        dies_and_returns(deployment, "manifest")

        # 9. The reader finds it there, by offset and by time, as before.
        dies_and_returns(deployment, "reader")
        listed = client.get(f"{STREAM}/fragments").json()["fragments"]
        assert [item["id"] for item in listed] == [entry.fragment_id]
        timed = client.get(f"{STREAM}/records", params={"offset": f"timestamp:{header.timestamp}"})
        assert timed.json()["records"] == page["records"]

    # 10. Spark reads the same object, by itself, as a row.
    with worker_environment(spark, deployment.stored.credentials):
        given = {"url": deployment.url, "stream": "orders", "mode": "direct"}
        rows = spark.read.format("bottomless").options(**given).load().collect()
    assert [(row.offset, bytes(row.value)) for row in rows] == [(0, VALUE)]


def objects(deployment: Deployment, pattern: str) -> list[Path]:
    """Keys of objects whose names are of this form."""
    return [path for path in map(Path, deployment.stored.sizes()) if path.match(pattern)]


def uploaded_next(client: httpx.Client) -> int:
    bounds = client.get(f"{STREAM}/offsets")
    # A service that just came back finds its peers within moments, and says 503 until then.
    return int(bounds.json()["object_store_next_offset"]) if bounds.is_success else -1
