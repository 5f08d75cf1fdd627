import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Code, InvalidRequest
from bottomless.model.names import (
    FullName,
    StreamName,
    Uid,
    parse_stream_id,
    parse_stream_name,
    parse_tenant,
    parse_uid,
    stream_id_bytes,
    stream_id_from,
    stream_id_from_bytes,
    uid_bytes,
    uid_from_bytes,
)
from bottomless_server.stores.streams import name_key


@pytest.mark.parametrize(
    "name", ["a", "7", "orders", "Orders.v2_eu-1", "a" * 128, "a.b", "amq", "internal", "console"]
)
def test_names_of_the_grammar_are_taken(name: str) -> None:
    assert parse_stream_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a..b",
        "../x",
        "a/b",
        "a\\b",
        "%2e%2e",
        "a%2fb",
        "\0",
        "a\0",
        "a\r\nX:1",
        "a\n",
        "\u0430dmin",
        "\u0661",
        "a b",
        "a?b",
        "a" * 129,
        "amq.x",
        "internal.x",
        "__x",
        "_x",
        "-x",
        ".x",
        "con",
        "CON",
        "lpt1",
        "a*",
        "{x}",
        "a:b",
        "\xff",
        "\ud800",
    ],
)
def test_other_names_are_refused_without_an_echo(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_stream_name(name)
    assert caught.value.code is Code.BAD_NAME
    assert len(name) < 3 or name in {"con", "CON"} or name not in str(caught.value)


@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
def test_a_stream_id_is_a_uuid_of_version_7(timestamp: int, randomness: bytes) -> None:
    stream_id = stream_id_from(timestamp, randomness)
    parsed = uuid.UUID(stream_id)
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert parsed.int >> 80 == timestamp
    # 12 bits after the version, 62 after the variant.
    assert (parsed.int >> 64) & 0xFFF == int.from_bytes(randomness[:2], "big") & 0xFFF
    assert parsed.int & (2**62 - 1) == int.from_bytes(randomness[2:], "big") & (2**62 - 1)
    assert parse_stream_id(stream_id) == stream_id_from_bytes(stream_id_bytes(stream_id))


def test_the_example_of_rfc_9562_comes_out() -> None:
    randomness = bytes.fromhex("0cc318c4dc0c0c07398f")
    assert stream_id_from(0x017F22E279B0, randomness) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


def test_stream_ids_sort_by_time() -> None:
    ids = [stream_id_from(timestamp, b"\xff" * 10) for timestamp in range(1000)]
    assert ids == sorted(ids)


@pytest.mark.parametrize(("timestamp", "size"), [(-1, 10), (2**48, 10), (0, 9), (0, 11)])
def test_a_stream_id_of_something_else_is_the_callers_mistake(timestamp: int, size: int) -> None:
    with pytest.raises(AssertionError):
        stream_id_from(timestamp, bytes(size))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c1",
        "0198D2A4-5b1e-7c3a-9a51-0f7e6f0d2c11",
        "0198d2a45b1e7c3a9a510f7e6f0d2c11",
        "{0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11}",
        "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11\n",
    ],
)
def test_other_forms_of_a_stream_id_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_stream_id(text)


@given(st.binary(min_size=16, max_size=16))
def test_a_uid_is_16_bytes_in_hex(raw: bytes) -> None:
    uid = uid_from_bytes(raw)
    assert uid_bytes(parse_uid(uid)) == raw


@pytest.mark.parametrize("text", ["", "0" * 31, "0" * 33, "A" * 32, "g" * 32, "0" * 32 + "\n"])
def test_other_uids_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_uid(text)


def test_a_uid_of_another_size_is_the_callers_mistake() -> None:
    with pytest.raises(AssertionError):
        uid_from_bytes(bytes(15))
    assert uid_bytes(Uid("00" * 16)) == bytes(16)


@pytest.mark.parametrize("text", ["a", "default", "0198d2a4-5b1e", "acme.com", "A_b", "t" * 64])
def test_a_tenant_is_what_it_was_given_as(text: str) -> None:
    assert parse_tenant(text) == text


@pytest.mark.parametrize(
    "text", ["", "a:b", "a/b", "_system", ".a", "-a", "a..b", "a b", "a\n", "é", "t" * 65]
)
def test_no_tenant_could_run_together_with_what_stands_beside_it(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_tenant(text)
    assert caught.value.code is Code.BAD_NAME


@given(st.tuples(*[st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,5}", fullmatch=True)] * 4))
def test_keys_of_different_full_names_differ(parts: tuple[str, str, str, str]) -> None:
    one, other = FullName(parts[0], StreamName(parts[1])), FullName(parts[2], StreamName(parts[3]))
    assert (name_key(one) == name_key(other)) == (one == other)
