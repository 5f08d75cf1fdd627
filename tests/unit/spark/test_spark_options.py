"""What the data source takes, and what it says to what it does not take."""

import pytest

from bottomless.errors import InvalidRequest
from bottomless.model.offset_spec import At, First, Next
from bottomless.spark.options import (
    COLUMNS_DEFAULT,
    PARTITION_SIZE_DEFAULT,
    Mode,
    S3View,
    parse_options,
)

NEEDED = {"url": "http://127.0.0.1:8080/", "stream": "orders"}


def test_everything_but_url_and_stream_has_a_default() -> None:
    options = parse_options(NEEDED)
    assert (options.url, options.stream) == ("http://127.0.0.1:8080", "orders")
    assert (options.starting, options.ending, options.include_tail) == (First(), Next(), True)
    assert (options.mode, options.columns) == (Mode.AUTO, COLUMNS_DEFAULT)
    assert (options.target_partition_bytes, options.min_partitions) == (PARTITION_SIZE_DEFAULT, 1)
    assert options.verify_checksums
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
        ("startingOffsets", "latest"),
        ("startingOffsets", "-1"),
        ("endingOffsets", "earliest"),
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
