"""AMQP 1.0: messages as clients of others encode them, and refusals of what is none."""

import struct
from typing import Any
from uuid import UUID

import pytest
from support.rabbitmq import MESSAGES, NOT_AMQP

from bottomless.errors import Corrupt
from bottomless.formats.amqp import (
    PROPERTIES,
    Described,
    Message,
    Pairs,
    Timestamp,
    decode_message,
)
from bottomless.model.record import Content

DATA = bytes.fromhex("005375a00161")


def value_of(encoded: bytes) -> Any:
    """A value among the application properties of a message."""
    pair = b"\xa1\x01v" + encoded
    section = b"\x00\x53\x74\xd1" + struct.pack(">II", 4 + len(pair), 2) + pair
    return decode_message(section + DATA).application["v"]


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        ("40", None),
        ("41", True),
        ("42", False),
        ("5600", False),
        ("5601", True),
        ("50ff", 255),
        ("51ff", -1),
        ("60ffff", 65_535),
        ("61ffff", -1),
        ("43", 0),
        ("5207", 7),
        ("7000010000", 65_536),
        ("54ff", -1),
        ("71ffffffff", -1),
        ("44", 0),
        ("5307", 7),
        ("80ffffffffffffffff", 2**64 - 1),
        ("55fe", -2),
        ("81ffffffffffffffff", -1),
        ("723f000000", 0.5),
        ("823fd0000000000000", 0.25),
        ("7300000041", "A"),
        ("7401020304", b"\1\2\3\4"),
        ("840102030405060708", bytes(range(1, 9))),
        ("94" + "00" * 16, bytes(16)),
        ("83ffffffffffffffff", Timestamp(-1)),
        ("98" + "0198d2a45b1e7c3a9a510f7e0198d2a4", UUID("0198d2a4-5b1e-7c3a-9a51-0f7e0198d2a4")),
        ("a00200ff", b"\0\xff"),
        ("b00000000200ff", b"\0\xff"),
        ("a102c3ab", "ë"),
        ("b100000002c3ab", "ë"),
        ("a30161", "a"),
        ("b30000000161", "a"),
        ("45", []),
        ("c00402540141", [1, True]),
        ("d0000000050000000141", [True]),
        ("c106025401a10161", Pairs([(1, "a")])),
        ("d10000000900000002" + "a1016b" + "5405", Pairs([("k", 5)])),
        ("e00402540102", [1, 2]),
        ("f0000000070000000254" + "0102", [1, 2]),
        ("00a301645405", Described("d", 5)),
    ],
)
def test_every_type_is_read(encoded: str, value: Any) -> None:
    assert value_of(bytes.fromhex(encoded)) == value


def test_each_message_of_others_says_what_was_encoded() -> None:
    for one in MESSAGES:
        message = decode_message(bytes.fromhex(one["bytes"]))
        record = one["record"]
        assert message.section == record.get("section")
        if "value" in record:
            assert message.value == record["value"].encode()
        else:
            assert message.value == bytes.fromhex(one["bytes"])
        assert message.content.name.lower() == record.get("content", "bytes")


def test_all_properties_have_their_names() -> None:
    [full] = [one for one in MESSAGES if "keys" in one["record"]]
    message = decode_message(bytes.fromhex(full["bytes"]))
    assert list(message.properties) == list(PROPERTIES)
    assert message.annotations["x-stream-filter-value"] == "emea"


def test_data_sections_are_joined_and_descriptors_may_be_words() -> None:
    word = b"\x00\xa3\x10amqp:data:binary\xa0\x01b"
    assert decode_message(DATA + word) == Message(b"ab", Content.BYTES, None, {}, {}, {})
    wide = b"\x00\x80" + (0x75).to_bytes(8, "big") + b"\xb0\x00\x00\x00\x01c"
    assert decode_message(DATA + wide).value == b"ac"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        NOT_AMQP,
        DATA[:-1],
        DATA + b"x",
        DATA + bytes.fromhex("00537740"),  # two kinds of body
        bytes.fromhex("0053774000537740"),  # two values
        bytes.fromhex("005375a1016100"),  # a text as data
        bytes.fromhex("00537aa00161"),  # no such section
        bytes.fromhex("00530161"),
        bytes.fromhex("005377a102c328"),  # no UTF-8
        bytes.fromhex("0053777300110000"),  # no character
        bytes.fromhex("0053775602"),  # no boolean
        bytes.fromhex("005377ff"),  # no type
        bytes.fromhex("005377c10301a10161"),  # a key without a value
        bytes.fromhex("005377f0000000057fffffff40"),  # two thousand million nulls
        bytes.fromhex("005377") + b"\xc0\x7f\x01" * 40 + b"\x40",
        bytes.fromhex("005377") + b"\x00" * 100,
        bytes.fromhex("005377c00401540141"),  # a list that is longer than it says
        bytes.fromhex("005374a00161") + DATA,  # properties that are no map
        bytes.fromhex("005373a00161") + DATA,
        bytes.fromhex("0053734500537345") + DATA,
        bytes.fromhex("005373c00f0e") + b"\x40" * 14 + DATA,
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_message(data)
