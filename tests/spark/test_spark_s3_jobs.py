"""Jobs on S3: a stream that lies there is verified, and one is exported to it, over interruptions."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as arrow_fs
import pytest
from deltalake import DeltaTable
from support.iceberg import iceberg_catalog
from support.s3 import BUCKET, CREDENTIALS, s3_client
from support.spark_s3 import S3Streams
from support.spark_session import worker_environment

from bottomless.errors import Unavailable
from bottomless.spark.jobs import export, verify

pytestmark = pytest.mark.timeout(600)
"""The first test starts Spark, which takes seconds, or minutes on a machine with much to do."""

ROUND = 40_000
"""Bytes: a few rounds of what is produced here."""
FRAGMENTS = [300, 200, 300]


@pytest.fixture
def s3(s3_streams: S3Streams, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Streams]:
    """As docs/spark-jobs.md has it: the environment of driver and executors says how to get there."""
    environment = {
        **CREDENTIALS,
        "AWS_ENDPOINT_URL": s3_streams.s3.endpoint,
        "AWS_REGION": "us-east-1",
        # What Delta wants to be told where there is no TLS.
        "AWS_ALLOW_HTTP": "true",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with worker_environment(s3_streams.streams.spark, environment):
        yield s3_streams


def options(s3_streams: S3Streams, name: str, **more: str) -> dict[str, str]:
    return {"url": s3_streams.streams.server.url, "stream": name, **more}


def damage(s3_streams: S3Streams, damaged: str, gone: str) -> None:
    """Turn a bit of one object, and remove another."""
    with s3_client(s3_streams.s3) as client:
        reply = client.get_object(Bucket=BUCKET, Key=f"{s3_streams.prefix}/{damaged}")
        with reply["Body"] as body:
            data = bytearray(body.read())
        data[200] ^= 1
        client.put_object(Bucket=BUCKET, Key=f"{s3_streams.prefix}/{damaged}", Body=bytes(data))
        client.delete_object(Bucket=BUCKET, Key=f"{s3_streams.prefix}/{gone}")


def test_a_verification_finds_what_is_damaged_in_s3_and_reports_to_it(s3: S3Streams) -> None:
    stored = s3.store_fragments(FRAGMENTS)
    sound = verify(s3.streams.spark, options(s3, stored.name, mode="presigned"))
    assert (sound.sound, sound.records) == (True, len(stored.values))
    listed = list(s3.streams.client.list_fragments(stored.name, {"locations": "true"}))
    assert len(listed) == len(FRAGMENTS)
    damage(s3, listed[0]["object_key"], listed[-1]["object_key"])

    report = f"s3://{BUCKET}/reports/{stored.name}"
    found = verify(s3.streams.spark, options(s3, stored.name, mode="direct"), report, ROUND)
    assert {fault["fragment_id"] for fault in found.faults} == {listed[0]["id"], listed[-1]["id"]}
    assert {"chunk", "checksum", "object"} <= {fault["what"] for fault in found.faults}
    files, path = arrow_fs.FileSystem.from_uri(report)
    with files.open_input_stream(f"{path}/report.json") as told:
        assert json.loads(told.read())["fault_count"] == found.fault_count
    verified: Any = ds.dataset(f"{path}/fragments", filesystem=files).to_table()["fragment_id"]
    assert sorted(verified.to_pylist()) == sorted(item["id"] for item in listed)


@pytest.fixture
def catalog(s3: S3Streams, tmp_path: Path) -> Iterator[Any]:
    settings = {
        "WAREHOUSE": f"s3://{BUCKET}/{tmp_path.name}",
        # The library does not look into the environment for these.
        "S3__ENDPOINT": s3.s3.endpoint,
        "S3__REGION": "us-east-1",
    }
    with iceberg_catalog(tmp_path, settings) as made:
        yield made


def rows(form: str, output: str, catalog: Any) -> pa.Table:
    """As other programs read them."""
    if form == "iceberg":
        found: pa.Table = catalog.load_table(output).scan().to_arrow()
    elif form == "delta":
        files, path = arrow_fs.FileSystem.from_uri(output)
        names = [f"{path}/{name.rpartition('/')[2]}" for name in DeltaTable(output).file_uris()]
        found = ds.dataset(names, filesystem=files).to_table()
    else:
        files, path = arrow_fs.FileSystem.from_uri(output)
        found = ds.dataset(path, filesystem=files).to_table()
    return found.sort_by("offset")


@pytest.mark.parametrize("form", ["parquet", "delta", "iceberg"])
def test_an_export_to_s3_that_broke_off_goes_on_with_its_position(
    s3: S3Streams, catalog: Any, form: str, tmp_path: Path
) -> None:
    stored = s3.store_fragments(FRAGMENTS)
    output = f"exports.{stored.name}".replace("-", "_")
    if form != "iceberg":
        output = f"s3://{BUCKET}/{tmp_path.name}/{stored.name}"
    module = sys.modules["bottomless.spark.jobs.export"]
    run = module.run_in_workers
    begun: list[Any] = []

    def dies(*given: Any) -> Any:
        """In its second round: planned, and some of its files are there."""
        begun.append(given)
        if len(begun) == 2:
            spark, work, pieces, *rest = given
            run(spark, work, pieces[:1], *rest)
            raise Unavailable("killed")
        return run(*given)

    wanted = options(s3, stored.name, minPartitions="2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "run_in_workers", dies)
        with pytest.raises(Unavailable, match="killed"):
            export(s3.streams.spark, wanted, output, form=form, round_size=ROUND)
    assert len(begun[1][2]) == 2

    done = export(s3.streams.spark, wanted, output, form=form)
    assert done.first_offset > 0
    assert done.next_offset == len(stored.values)
    found = rows(form, output, catalog)
    assert found["offset"].to_pylist() == list(range(len(stored.values)))
    assert found["value"].to_pylist() == stored.values
