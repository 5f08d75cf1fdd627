"""What a directory of RabbitMQ says of itself."""

import pytest

from bottomless.errors import Corrupt
from bottomless.formats.classic_index import REL_COUNT
from bottomless.formats.classic_names import (
    QueueDirectory,
    decode_queue_name,
    decode_segment_entry_count,
    decode_vhost,
)


def test_a_directory_says_of_which_queue_it_is() -> None:
    assert decode_queue_name(b"VHOST: /\nQUEUE: jobs\n") == QueueDirectory("/", "jobs", None)
    assert decode_queue_name("VHOST: größe\nQUEUE: a\nb\nINDEX: v2\n".encode()) == QueueDirectory(
        "größe", "a\nb", None
    )


def test_of_a_queue_with_priorities_there_is_a_directory_for_each() -> None:
    for priority in (0, 10, 255):
        data = b"VHOST: /\nQUEUE: jobs\0" + bytes([priority]) + b"\nINDEX: v2\n"
        assert decode_queue_name(data) == QueueDirectory("/", "jobs", priority)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"QUEUE: jobs\n",
        b"VHOST: /\nQUEUE: \n",
        b"VHOST: /\nQUEUE: jobs",
        b"VHOST: /\nQUEUE: jobs\0\n",
        b"VHOST: /\nQUEUE: a\0b\0\1\n",
        b"VHOST: /\nQUEUE: \xff\n",
        b"VHOST: /\nQUEUE: jobs\nINDEX: v3",
        b"VHOST: " + b"v" * 256 + b"\nQUEUE: q\n",
    ],
)
def test_what_names_no_queue_is_refused(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_queue_name(data)


def test_a_vhost_has_the_name_that_it_says() -> None:
    assert decode_vhost("shop/größe".encode()) == "shop/größe"
    for data in (b"", b"\xff", b"v" * 256):
        with pytest.raises(Corrupt):
            decode_vhost(data)


def test_segments_have_as_many_messages_as_the_configuration_says() -> None:
    written = (
        b"%% This file is auto-generated! {segment_entry_count, 1}.\n{segment_entry_count, 2048}."
    )
    assert decode_segment_entry_count(written) == 2048
    assert decode_segment_entry_count(b"{ segment_entry_count ,16 } .") == 16
    assert decode_segment_entry_count(None) == REL_COUNT == 16_384
    for data in (b"", b"{segment_entry_count, 0}.", b"{segment_entry_count, 16385}.", b"%{a, 1}."):
        with pytest.raises(Corrupt):
            decode_segment_entry_count(data)
