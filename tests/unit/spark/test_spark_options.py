"""What the data source takes, and what it says to what it does not take."""

import re
from pathlib import Path

import pytest

from bottomless.errors import InvalidRequest
from bottomless.model.filter import Filter
from bottomless.model.names import StreamId
from bottomless.model.offset_spec import Ago, At, First, Next, Since, Tail
from bottomless.spark.options import (
    COLUMNS_DEFAULT,
    OPTION_NAMES,
    PARTITION_SIZE_DEFAULT,
    Limits,
    Mode,
    OnCorrupt,
    Reading,
    S3View,
    check_batch,
    check_streaming,
    parse_options,
)
from bottomless.spark.positions import Pinned, Position

NEEDED = {"url": "http://127.0.0.1:8080/", "stream": "orders"}


def test_everything_but_url_and_stream_has_a_default() -> None:
    options = parse_options(NEEDED)
    assert (options.url, options.stream) == ("http://127.0.0.1:8080", "orders")
    assert (options.starting, options.ending, options.include_tail) == (None, None, True)
    assert (options.mode, options.columns) == (Mode.AUTO, COLUMNS_DEFAULT)
    assert (options.target_partition_bytes, options.min_partitions) == (PARTITION_SIZE_DEFAULT, 1)
    assert options.reading == Reading()
    assert (options.limits, options.lease_seconds) == (Limits(), 3600)
    assert options.metrics_dir is None


def test_workers_see_s3_as_the_services_do_unless_told_otherwise() -> None:
    assert parse_options(NEEDED).s3 == S3View(None, None, None, None)
    given = {
        "s3.endpoint": "https://store:9000/",
        "s3.region": "eu-central-1",
        "s3.pathStyle": "false",
        "s3.ca": "/etc/ca.pem",
    }
    wanted = S3View("https://store:9000", "eu-central-1", False, "/etc/ca.pem")
    assert parse_options({**NEEDED, **given}).s3 == wanted


def test_names_count_in_any_case() -> None:
    options = parse_options({**NEEDED, "STARTINGOFFSETS": "7", "endingoffsets": "9"})
    assert (options.starting, options.ending) == (At(7), At(9))


def test_an_unknown_option_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match=r"unknown option startoffset; .*startingOffsets"):
        parse_options({**NEEDED, "startOffset": "7"})


@pytest.mark.parametrize("missing", ["url", "stream"])
def test_url_and_stream_are_needed(missing: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{missing} is missing"):
        parse_options({name: text for name, text in NEEDED.items() if name != missing})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("url", "127.0.0.1:8080"),
        ("stream", "no/such name"),
        ("mode", "fast"),
        ("startingOffsets", "soon"),
        ("startingOffsets", "-10 fortnights"),
        ("endingOffsets", '{"bills": 7}'),
        ("endingOffsets", '{"orders": 7'),
        ("endingOffsets", '{"orders": true}'),
        ("startingTimestamp", "yesterday"),
        ("matchUnfiltered", "true"),
        ("filterValues", '["emea", 7]'),
        ("filterValues", "[]"),
        ("filterValues", "x" * 256),
        ("filterValues", ",".join(str(number) for number in range(17))),
        ("keys", "x" * 1025),
        ("maxBytesPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "many"),
        ("maxFragmentsPerTrigger", "-1"),
        ("failOnDataLoss", "no"),
        ("onCorrupt", "repair"),
        ("leaseSeconds", "31622401"),
        ("prefetch", "65"),
        ("rangeBytes", "0"),
        ("credentials", "vended"),
        ("credentials", "file:relative"),
        ("includeTail", "yes"),
        ("columns", ""),
        ("columns", "value,value"),
        ("columns", "value,price"),
        ("targetPartitionBytes", "0"),
        ("targetPartitionBytes", "64m"),
        ("minPartitions", "-1"),
        ("verifyChecksums", ""),
        ("s3.endpoint", "store:9000"),
        ("s3.endpoint", "http://key:secret@store:9000"),
        ("url", "http://user:password@127.0.0.1:8080"),
        ("s3.region", ""),
        ("s3.pathStyle", "yes"),
        ("s3.ca", ""),
    ],
)
def test_an_option_out_of_its_form_is_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_options({**NEEDED, name: text})


STREAM_ID = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("earliest", First()),
        ("Latest", Next()),
        ("first", First()),
        ("next", Next()),
        ("tail:1000", Tail(1000)),
        ("interval:10m", Ago(600)),
        ("timestamp:1787390399120", Since(1787390399120)),
        ("2026-08-22", Since(1787356800000)),
        ('{"orders": "tail:7"}', Tail(7)),
        ("0", At(0)),
        ("-1000", Tail(1000)),
        ("-10m", Ago(600)),
        ("-2D", Ago(172_800)),
        ('{"orders": 7}', At(7)),
        ('{"orders": "-7"}', Tail(7)),
        ('{"orders": "latest"}', Next()),
        (f'{{"v":1,"s":{{"orders":{{"o":7,"u":"{STREAM_ID}"}}}}}}', Pinned(7, STREAM_ID)),
    ],
)
@pytest.mark.parametrize("which", ["starting", "ending"])
def test_a_position_may_be_said_in_many_ways(which: str, text: str, wanted: Position) -> None:
    assert getattr(parse_options({**NEEDED, f"{which}Offsets": text}), which) == wanted


@pytest.mark.parametrize("text", ["last", "stored", "begin", "tail:x", "-x", "interval:7"])
def test_a_position_that_is_none_is_told_with_the_option_and_its_choices(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"startingOffsets.* is first .*tail:1000"):
        parse_options({**NEEDED, "startingOffsets": text})


@pytest.mark.parametrize("text", ["2026-08-22T09:19:59.120Z", "1787390399120"])
def test_a_position_may_be_a_time(text: str) -> None:
    given = {"startingTimestamp": text, "endingTimestamp": text}
    options = parse_options({**NEEDED, **given})
    assert (options.starting, options.ending) == (Since(1787390399120),) * 2


def test_a_position_is_said_once() -> None:
    with pytest.raises(InvalidRequest, match="give one of them"):
        parse_options({**NEEDED, "startingOffsets": "7", "startingTimestamp": "7"})


def test_filter_values_and_keys_are_lists_with_commas_or_in_json() -> None:
    assert parse_options({**NEEDED, "filterValues": "emea, apac"}).reading.wanted == Filter(
        ("apac", "emea")
    )
    given = {"filterValues": '["a,b", ""]', "matchUnfiltered": "true", "keys": "cust-9"}
    assert parse_options({**NEEDED, **given}).reading.wanted == Filter(
        ("", "a,b"), True, (b"cust-9",)
    )
    assert parse_options({**NEEDED, "keys": '["k"]'}).reading.wanted == Filter(keys=(b"k",))
    assert parse_options(NEEDED).reading.wanted is None


def test_how_workers_read_is_said_by_options() -> None:
    given = {
        "failOnDataLoss": "false",
        "onCorrupt": "skip",
        "prefetch": "0",
        "rangeBytes": "65536",
        "verifyChecksums": "false",
        "credentials": "file:/etc/reader.ini",
    }
    options = parse_options({**NEEDED, **given})
    assert options.reading == Reading(None, False, False, OnCorrupt.SKIP, 0, 65536)
    assert options.s3.credentials == "/etc/reader.ini"


def test_options_of_streaming_queries_and_of_batch_reads_are_not_ignored_by_the_other() -> None:
    limited = parse_options({**NEEDED, "maxOffsetsPerTrigger": "7", "maxBytesPerTrigger": "9"})
    assert limited.limits == Limits(size=9, offsets=7)
    check_streaming(limited)
    with pytest.raises(InvalidRequest, match="readStream"):
        check_batch(limited)
    ended = parse_options({**NEEDED, "endingTimestamp": "7"})
    check_batch(ended)
    with pytest.raises(InvalidRequest, match="a stream has no end"):
        check_streaming(ended)


def test_the_docs_list_every_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    listed = re.findall(r"^\| `([A-Za-z0-9.]+)` \|", page.partition("## Options")[2], re.MULTILINE)
    end = listed.index("metricsDir") + 1
    assert set(listed[:end]) == set(OPTION_NAMES)
