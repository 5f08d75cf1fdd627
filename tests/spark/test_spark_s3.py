"""The data source over S3: the same rows on every way that a worker can take."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
import pytest
from pyspark.errors import PythonException
from support.s3 import CREDENTIALS, S3Server, s3_client
from support.server import AllInOne
from support.spark_s3 import SETTINGS, SMALL, S3Streams, Stored
from support.spark_session import rows_of, worker_environment
from support.waiting import until

from bottomless.client import Client
from bottomless.model.names import StreamId, StreamName
from bottomless.spark.partitions import stored_of
from bottomless.spark.read import sum_counts
from bottomless.spark.service import Source
from bottomless.spark.source import BottomlessSource
from bottomless.spark.store import Counts
from bottomless.spark.url_objects import UrlObjects

WORKERS = {
    "right": CREDENTIALS,
    "wrong": {**CREDENTIALS, "AWS_SECRET_ACCESS_KEY": "not-this-one"},
}

pytestmark = pytest.mark.timeout(600)
"""The first test starts Spark, which takes seconds, or minutes on a machine with much to do."""


@pytest.fixture(scope="module")
def stored(s3_streams: S3Streams) -> Stored:
    """Several fragments, each of several chunks."""
    return s3_streams.store(count=700, requests=8)


@pytest.fixture
def metrics_dir(tmp_path: Path) -> Path:
    path = tmp_path / "reads"
    path.mkdir()
    return path


def ways_in(counts: Counts) -> set[str]:
    """Which ways were taken to records, by the reads that were made."""
    ways = {
        "direct": counts.object_reads - counts.presigned_reads,
        "presigned": counts.presigned_reads,
        "reader": counts.page_reads,
    }
    return {way for way, reads in ways.items() if reads}


@pytest.mark.parametrize(
    ("mode", "credentials", "way"),
    [
        ("direct", "right", "direct"),
        ("presigned", "wrong", "presigned"),
        ("reader", "wrong", "reader"),
        ("auto", "right", "direct"),
        ("auto", "wrong", "presigned"),
    ],
)
def test_every_way_brings_the_same_rows(
    s3_streams: S3Streams, stored: Stored, metrics_dir: Path, mode: str, credentials: str, way: str
) -> None:
    with worker_environment(s3_streams.streams.spark, WORKERS[credentials]):
        frame = s3_streams.streams.load(stored.name, mode=mode, metricsDir=str(metrics_dir))
        rows = rows_of(frame)

    assert [value for _, _, value in rows] == stored.values
    assert rows == s3_streams.streams.rows_over_http(stored.name)
    counts = sum_counts(metrics_dir)
    assert counts.record_count == len(stored.values)
    assert ways_in(counts) == {way}
    assert (counts.url_requests > 0) == (way == "presigned")


def test_fragments_on_several_drives_are_read_directly_each_from_its_own(
    s3_streams: S3Streams, metrics_dir: Path
) -> None:
    client = s3_streams.streams.client
    tiered = s3_streams.store_fragments([30, 20, 40])
    client.move_fragments(tiered.name, 0, 30, "shelf")
    client.move_fragments(tiered.name, 30, 50, "cold")

    def kinds() -> list[str]:
        found = client.fragments(tiered.name, first_offset=0, next_offset=90, locations=True)
        return [one.store["kind"] + one.store["root"][-5:] for one in found if one.store]

    ends = s3_streams.prefix[-5:]
    until(lambda: kinds() == ["fileshelf", "s3-cold", f"s3{ends}"], what="moved fragments")
    with worker_environment(s3_streams.streams.spark, WORKERS["right"]):
        frame = s3_streams.streams.load(tiered.name, mode="direct", metricsDir=str(metrics_dir))
        rows = rows_of(frame)

    assert [value for _, _, value in rows] == tiered.values
    assert ways_in(sum_counts(metrics_dir)) == {"direct"}


def test_mode_direct_says_what_is_wrong_with_the_credentials_and_what_to_do(
    s3_streams: S3Streams, stored: Stored
) -> None:
    with worker_environment(s3_streams.streams.spark, WORKERS["wrong"]):
        frame = s3_streams.streams.load(stored.name, mode="direct")
        with pytest.raises(PythonException) as caught:
            frame.count()

    told = str(caught.value)
    assert "SignatureDoesNotMatch" in told
    assert "mode=presigned and mode=reader need no credentials" in told
    assert CREDENTIALS["AWS_ACCESS_KEY_ID"] not in told


def test_credentials_may_come_from_a_file_whatever_the_environment_says(
    s3_streams: S3Streams, stored: Stored, tmp_path: Path
) -> None:
    path = tmp_path / "reader.ini"
    path.write_text(
        "[default]\n"
        f"aws_access_key_id = {CREDENTIALS['AWS_ACCESS_KEY_ID']}\n"
        f"aws_secret_access_key = {CREDENTIALS['AWS_SECRET_ACCESS_KEY']}\n"
    )
    with worker_environment(s3_streams.streams.spark, WORKERS["wrong"]):
        frame = s3_streams.streams.load(stored.name, mode="direct", credentials=f"file:{path}")
        assert frame.count() == len(stored.values)
        nowhere = s3_streams.streams.load(
            stored.name, mode="direct", credentials="file:/no/such.ini"
        )
        with pytest.raises(PythonException, match="the option credentials names no file"):
            nowhere.count()


def test_workers_may_see_the_store_elsewhere_than_the_services(
    s3_streams: S3Streams, stored: Stored, metrics_dir: Path
) -> None:
    other = s3_streams.s3.endpoint.replace("127.0.0.1", "localhost")
    with worker_environment(s3_streams.streams.spark, WORKERS["right"]):
        frame = s3_streams.streams.load(
            stored.name,
            mode="direct",
            metricsDir=str(metrics_dir),
            **{"s3.endpoint": other, "s3.region": "eu-central-1", "s3.pathStyle": "true"},
        )
        assert frame.count() == len(stored.values)
    assert ways_in(sum_counts(metrics_dir)) == {"direct"}


def test_where_an_endpoint_does_not_answer_workers_auto_takes_another_way(
    s3_streams: S3Streams, stored: Stored, metrics_dir: Path
) -> None:
    unserved = {"s3.endpoint": "http://127.0.0.1:9"}
    with worker_environment(s3_streams.streams.spark, WORKERS["right"]):
        direct = s3_streams.streams.load(stored.name, mode="direct", **unserved)
        with pytest.raises(PythonException, match="does not answer this worker"):
            direct.count()
        auto = s3_streams.streams.load(
            stored.name, mode="auto", metricsDir=str(metrics_dir), **unserved
        )
        assert auto.count() == len(stored.values)
    # The URLs name the endpoint as the services see it, and that does answer here.
    assert ways_in(sum_counts(metrics_dir)) == {"presigned"}


@pytest.mark.parametrize("mode", ["direct", "presigned"])
def test_a_lost_object_is_an_error_with_its_offsets(s3_streams: S3Streams, mode: str) -> None:
    lost = s3_streams.store(count=20, requests=1)
    with worker_environment(s3_streams.streams.spark, WORKERS["right"]):
        frame = s3_streams.streams.load(lost.name, mode=mode)
        s3_streams.lose_objects(lost.name)
        with pytest.raises(PythonException) as caught:
            frame.count()

    assert "first_offset=0 next_offset=20" in str(caught.value)
    assert "NotFound" in str(caught.value)


def test_in_mode_auto_a_lost_object_comes_from_the_reader(
    s3_streams: S3Streams, metrics_dir: Path
) -> None:
    lost = s3_streams.store(count=20, requests=1)
    wanted = s3_streams.streams.rows_over_http(lost.name)
    with worker_environment(s3_streams.streams.spark, WORKERS["right"]):
        frame = s3_streams.streams.load(lost.name, mode="auto", metricsDir=str(metrics_dir))
        s3_streams.lose_objects(lost.name)
        # The reader keeps recent blocks in memory, so it still has these.
        assert rows_of(frame) == wanted
    assert ways_in(sum_counts(metrics_dir)) == {"reader"}


def test_a_url_that_ran_out_in_the_middle_is_renewed(
    seaweed: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As a worker reads, without Spark: a job that lasts for longer than its URLs."""
    settings = {**SETTINGS, **CREDENTIALS, "BOTTOMLESS_STORE_URL": seaweed.store_url("short")}
    with (
        AllInOne(tmp_path_factory.mktemp("short-urls") / "data", settings) as server,
        Client(server.url) as client,
    ):
        made = client.create_stream("orders", SMALL)
        client.append("orders", [{"value": "a"}])
        client.wait_until_stored("orders", timeout_seconds=240)
        (listed,) = client.fragments("orders", first_offset=0, next_offset=1)
        counts = Counts()
        source = Source(server.url, StreamName("orders"), StreamId(made["stream_id"]))
        objects = UrlObjects(source, 1, None, counts)
        fragment = stored_of(listed)

        whole = objects.read(fragment, 0, fragment.size)
        ((fragment_id, url),) = objects._urls.items()
        # Of a second, where the server's own live as long as this test may take at its slowest.
        old = signed_for_a_second(seaweed, urlsplit(url).path)
        until(lambda: httpx.get(old).status_code == 403, what="the store to refuse the old URL")
        objects._urls[fragment_id] = old
        again = objects.read(fragment, 0, fragment.size)

    assert again == whole
    assert len(whole) == fragment.size
    assert (counts.presigned_reads, counts.url_requests) == (2, 2)


def signed_for_a_second(server: S3Server, path: str) -> str:
    _, bucket, object_key = unquote(path).split("/", 2)
    where = {"Bucket": bucket, "Key": object_key}
    with s3_client(server) as client:
        return str(client.generate_presigned_url("get_object", Params=where, ExpiresIn=1))


def test_no_url_and_no_secret_is_in_what_spark_carries(
    s3_streams: S3Streams, stored: Stored
) -> None:
    from pyspark.cloudpickle import dumps

    for mode in ("auto", "presigned"):
        options = {"url": s3_streams.streams.server.url, "stream": stored.name, "mode": mode}
        source = BottomlessSource(options)
        reader = source.reader(source.schema())
        planned = (reader, list(reader.partitions()))
        carried: bytes = dumps(planned)  # type: ignore[no-untyped-call]
        assert stored.name.encode() in carried
        assert b"X-Amz" not in carried
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"].encode() not in carried
