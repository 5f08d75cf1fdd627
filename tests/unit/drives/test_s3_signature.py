"""Signatures of GETs: those of the specification's examples, and those that botocore makes."""

import itertools
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import botocore.session
import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from hypothesis import given, settings
from hypothesis import strategies as st

from bottomless_server.drives.s3_signature import path_of, signed_get, signing_key


class Keys(NamedTuple):
    access_key: str
    secret_key: str
    token: str | None = None


def test_the_get_of_a_range_is_signed_as_in_the_specification() -> None:
    """The example "GET Object" of Amazon's page on signatures in the header Authorization."""
    keys = Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    headers = signed_get(
        "examplebucket.s3.amazonaws.com",
        "/test.txt",
        {"range": "bytes=0-9"},
        keys,
        "us-east-1",
        "20130524T000000Z",
    )
    assert headers["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )


@pytest.mark.parametrize(
    ("day", "key"),
    [
        ("20120215", "f4780e2d9f65fa895f9c67b32ce1baf0b0d8a43505a000a1a9e090d414db404d"),
        ("20150830", "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9"),
    ],
)
def test_the_key_of_a_day_is_that_of_the_specification(day: str, key: str) -> None:
    secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
    assert signing_key(secret, day, "us-east-1", "iam").hex() == key


class _NoBody:
    def stream(self, *_: Any, **__: Any) -> list[bytes]:
        return []


CLIENTS = list(
    itertools.product(
        (None, "http://127.0.0.1:9000", "https://store.example:8443/base"),
        ("path", "virtual"),
        (None, "IQoJb3Jp/+Z2lu=="),
    )
)


@cache
def _client(endpoint: str | None, style: str, token: str | None) -> Any:
    """Made when it is needed: each process that collects tests would make all of them else."""
    session: Any = botocore.session.Session()  # type: ignore[no-untyped-call]
    session.set_credentials("AKID", "s3cr3t/+key", token)
    config: Any = Config(  # type: ignore[no-untyped-call]
        signature_version="s3v4",
        retries={"total_max_attempts": 1},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": style, "payload_signing_enabled": True},
    )
    return session.create_client(
        "s3", region_name="eu-central-1", endpoint_url=endpoint, config=config
    )


PARTS = st.text(
    st.one_of(
        st.sampled_from(" /~%+&=?#;:,@!$'()*[]\\\"<>^`{}|_-.ä€😀\x7f"),
        st.characters(codec="utf-8", exclude_characters="\x00\r\n"),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(
    which=st.sampled_from(sorted(CLIENTS, key=str)),
    bucket=st.sampled_from(["bucket", "dotted.bucket"]),
    object_key=PARTS,
    wanted=st.none() | st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)),
)
def test_a_get_is_signed_as_botocore_signs_it(
    which: tuple[str | None, str, str | None],
    bucket: str,
    object_key: str,
    wanted: tuple[int, int] | None,
) -> None:
    client = _client(*which)
    sent: list[Any] = []

    def seen(request: Any, **_: Any) -> Any:
        sent.append(request)
        return AWSResponse(request.url, 200, {}, _NoBody())  # type: ignore[no-untyped-call]

    ranged = {} if wanted is None else {"Range": f"bytes={wanted[0]}-{wanted[1]}"}
    client.meta.events.register("before-send.s3.GetObject", seen, unique_id="seen")
    try:
        client.get_object(Bucket=bucket, Key=object_key, **ranged)
    finally:
        client.meta.events.unregister("before-send.s3.GetObject", unique_id="seen")
    (request,) = sent
    theirs = {name.lower(): _text(value) for name, value in request.headers.items()}
    place = urlsplit(request.url)
    path = request.url.partition(place.netloc)[2]

    ours = signed_get(
        place.netloc,
        path,
        {} if wanted is None else {"range": ranged["Range"]},
        Keys("AKID", "s3cr3t/+key", which[2]),
        "eu-central-1",
        theirs["x-amz-date"],
    )

    assert path.endswith("/" + path_of(object_key)), "encoded as the library encodes it"
    assert ours == {name: theirs[name] for name in ours}


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()
