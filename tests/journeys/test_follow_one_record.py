"""One record, ten stops: the same ten as docs/one-record.md, each looked at from outside.

The process is the real one; files and objects are opened with the formats, not with
the services' own code, so that what is promised on disk is what is checked.
"""

from pathlib import Path

import httpx
from pyspark.sql import SparkSession
from support.server import AllInOne
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


def only(paths: list[Path]) -> Path:
    assert len(paths) == 1, paths
    return paths[0]


def newest_root(objects: Path) -> Path:
    return max(objects.rglob("root.*.manifest"))


def test_follow_one_record(server: AllInOne, spark: SparkSession) -> None:
    with server.client() as client:
        # 1. The contract: a stream, and a request that appends to it.
        created = client.put(STREAM, json={"fragment": {"max_age_ms": 2000}})
        assert created.status_code == httpx.codes.CREATED
        stream_id = created.json()["stream_id"]

        # 2. ingest/routes takes it, 3. the batcher gives it an offset and a time.
        answer = client.post(f"{STREAM}/records", json={"records": [RECORD]}).json()
        assert (answer["first_offset"], answer["next_offset"], answer["count"]) == (0, 1, 1)

        # 4. It became a chunk, and 5. the appender made that durable before it answered.
        segment = only(list((server.data_dir / "ingest").rglob(f"{stream_id}/*.segment")))
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

        # 6. The uploader cuts it into a fragment when it is old enough, 7. as one object.
        until(lambda: uploaded_next(client) == 1, what="the fragment")
        blob = only(list(server.objects.rglob("*.fragment"))).read_bytes()
        fragment = fragment_format.decode_fragment_header(blob[: fragment_format.HEADER_SIZE])
        assert (fragment.stream_id, fragment.first_offset, fragment.next_offset) == (
            stream_id,
            0,
            1,
        )
        assert blob[fragment_format.HEADER_SIZE :].startswith(stored), "bytes changed on the way"

        # 8. The manifest names it: root → entry → object, checksum by checksum.
        root = decode_node(newest_root(server.objects).read_bytes())
        entry = fragment_info(root.entries[0])
        assert (root.next_offset, entry.uid, entry.crc) == (1, fragment.uid, crc32c(blob))

        # 9. The reader finds it there, by offset and by time, as before.
        listed = client.get(f"{STREAM}/fragments").json()["fragments"]
        assert [item["id"] for item in listed] == [entry.fragment_id]
        timed = client.get(f"{STREAM}/records", params={"offset": f"timestamp:{header.timestamp}"})
        assert timed.json()["records"] == page["records"]

    # 10. Spark reads the same object as a row.
    frame = spark.read.format("bottomless").options(url=server.url, stream="orders").load()
    rows = frame.collect()
    assert [(row.offset, bytes(row.value)) for row in rows] == [(0, VALUE)]


def uploaded_next(client: httpx.Client) -> int:
    return int(client.get(f"{STREAM}/offsets").json()["object_store_next_offset"])
