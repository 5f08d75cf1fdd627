"""How an S3 store is waited for: settings that reach the drive, within bounds that are said."""

import pytest
from pydantic import ValidationError

from bottomless_server.drives.s3_options import MIB, READ_AT_ONCE, S3Options
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.process.store_url import parse_s3_url


def test_what_nobody_sets_is_as_the_drive_has_it() -> None:
    assert parse_s3_url("s3://bucket", CommonSettings()) == S3Options("bucket")


def test_every_setting_reaches_the_drive(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = S3Options(
        "bucket",
        connection_count_max=7,
        connect_seconds=0.5,
        read_seconds=2,
        call_seconds=9.5,
        multipart_bytes=6 * MIB,
        part_bytes=5 * MIB,
        part_count_max=2,
    )
    for name in (
        *("connection_count_max", "connect_seconds", "read_seconds", "call_seconds"),
        *("multipart_bytes", "part_bytes", "part_count_max"),
    ):
        monkeypatch.setenv(f"BOTTOMLESS_STORE_{name.upper()}", str(getattr(wanted, name)))

    assert parse_s3_url("s3://bucket", CommonSettings()) == wanted


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("store_connect_seconds", "0"),
        ("store_connect_seconds", "nan"),
        ("store_read_seconds", "601"),
        ("store_call_seconds", "-1"),
        ("store_call_seconds", "inf"),
        ("store_connection_count_max", "0"),
        ("store_connection_count_max", "1.5"),
        ("store_multipart_bytes", str(5 * MIB - 1)),
        ("store_multipart_bytes", str(5 * 1024 * MIB + 1)),
        ("store_part_bytes", str(5 * MIB - 1)),
        ("store_part_count_max", "65"),
    ],
)
def test_what_cannot_work_is_refused_by_name(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"BOTTOMLESS_{name.upper()}", text)
    with pytest.raises(ValidationError, match=name):
        CommonSettings()


@pytest.mark.parametrize("name", sorted(READ_AT_ONCE))
def test_the_class_of_what_is_put_stands_in_the_url(name: str) -> None:
    url = f"s3://bucket/cold?storage_class={name}"
    assert parse_s3_url(url, CommonSettings()) == S3Options("bucket", "cold", storage_class=name)


@pytest.mark.parametrize("name", ["GLACIER", "DEEP_ARCHIVE", "standard_ia", "SECRET"])
def test_a_class_that_is_not_read_at_once_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(ValueError, match="STANDARD_IA") as raised:
        parse_s3_url(f"s3://bucket?storage_class={name}", CommonSettings())
    assert "SECRET" not in str(raised.value)
