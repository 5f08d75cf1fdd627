"""The configuration of a queue: closed, strict, and the same after it was kept."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Code, InvalidRequest
from bottomless.model.limits import DELAY_MS_MAX, MESSAGE_TTL_MS_MAX, VISIBILITY_MS_MAX
from bottomless.model.queue import (
    QueueConfig,
    encode_queue_config,
    parse_queue_config,
    patch_queue_config,
    queue_config_differences,
)

FULL = {
    "visibility_ms": 1,
    "delay_ms": 2,
    "message_ttl_ms": 3,
    "dedup_ms": 4,
    "max_messages": 5,
    "max_bytes": 6,
    "overflow": "drop-head",
    "max_deliveries": 7,
    "dead_letter": {"queue": "dead"},
    "archive": {"stream": "done"},
    "labels": {"team": "a"},
}
values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


def faults_of(value: object) -> list[tuple[str, str]]:
    with pytest.raises(InvalidRequest) as caught:
        parse_queue_config(value)
    assert caught.value.code is Code.VALIDATION_FAILED
    return [(fault.code, fault.pointer or "") for fault in caught.value.faults]


def test_every_member_has_a_default() -> None:
    config = parse_queue_config({})
    assert config == QueueConfig()
    assert (config.visibility_ms, config.dedup_ms, config.overflow) == (30_000, 300_000, "reject")
    assert (config.max_deliveries, config.dead_letter, config.archive) == (None, None, None)


def test_a_configuration_is_the_same_after_it_was_kept() -> None:
    assert FULL.keys() == QueueConfig.model_fields.keys()
    config = parse_queue_config(FULL)
    assert encode_queue_config(config) == FULL
    assert parse_queue_config(encode_queue_config(QueueConfig())) == QueueConfig()


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"visibility_ms": -1}, ("greater-than-equal", "/visibility_ms")),
        ({"visibility_ms": VISIBILITY_MS_MAX + 1}, ("less-than-equal", "/visibility_ms")),
        ({"visibility_ms": True}, ("int-type", "/visibility_ms")),
        ({"visibility_ms": "1"}, ("int-type", "/visibility_ms")),
        ({"delay_ms": DELAY_MS_MAX + 1}, ("less-than-equal", "/delay_ms")),
        ({"message_ttl_ms": 0}, ("greater-than-equal", "/message_ttl_ms")),
        ({"message_ttl_ms": MESSAGE_TTL_MS_MAX + 1}, ("less-than-equal", "/message_ttl_ms")),
        ({"dedup_ms": 86_400_001}, ("less-than-equal", "/dedup_ms")),
        ({"max_messages": 0}, ("greater-than-equal", "/max_messages")),
        ({"max_bytes": "10"}, ("int-type", "/max_bytes")),
        ({"overflow": "drop-tail"}, ("literal-error", "/overflow")),
        (
            {"max_deliveries": 0, "dead_letter": {"queue": "d"}},
            ("greater-than-equal", "/max_deliveries"),
        ),
        ({"max_deliveries": 3}, ("missing-dead-letter", "/max_deliveries")),
        ({"dead_letter": {}}, ("value-error", "/dead_letter")),
        ({"dead_letter": {"queue": "a", "stream": "b"}}, ("value-error", "/dead_letter")),
        ({"dead_letter": {"queue": "a/b"}}, ("value-error", "/dead_letter/queue")),
        ({"dead_letter": {"stream": "amq.x"}}, ("value-error", "/dead_letter/stream")),
        ({"dead_letter": {"topic": "a"}}, ("unknown-member", "/dead_letter")),
        ({"archive": {}}, ("missing", "/archive/stream")),
        ({"priority": 1}, ("unknown-member", "")),
        ({"labels": {"a": 1}}, ("string-type", "/labels")),
        ([], ("model-type", "")),
    ],
)
def test_what_is_not_of_the_schema_is_refused_with_its_place(
    value: object, fault: tuple[str, str]
) -> None:
    assert faults_of(value) == [fault]


@pytest.mark.parametrize(
    "value",
    [
        {"visibility_ms": 0},
        {"visibility_ms": VISIBILITY_MS_MAX, "delay_ms": DELAY_MS_MAX, "dedup_ms": 86_400_000},
        {"message_ttl_ms": 1},
        {"max_bytes": "10 MiB"},
        {"dead_letter": {"stream": "a"}, "max_deliveries": 1},
    ],
)
def test_bounds_belong_to_what_is_allowed(value: object) -> None:
    config = parse_queue_config(value)
    assert parse_queue_config(encode_queue_config(config)) == config


@given(value=values)
def test_any_value_is_read_or_refused(value: object) -> None:
    with suppress(InvalidRequest):
        parse_queue_config(value)
    with suppress(InvalidRequest):
        patch_queue_config(QueueConfig(), value)


def test_a_patch_changes_what_it_names_and_null_takes_it_back() -> None:
    config = parse_queue_config(FULL)
    patched = patch_queue_config(
        config, {"visibility_ms": None, "labels": {"x": "y", "team": None}, "max_bytes": "1 KiB"}
    )
    assert (patched.visibility_ms, patched.labels, patched.max_bytes) == (30_000, {"x": "y"}, 1024)
    assert queue_config_differences(config, patched) == ["/visibility_ms", "/max_bytes", "/labels"]
    with pytest.raises(InvalidRequest, match="not valid"):
        patch_queue_config(config, {"dead_letter": None})
    moved = patch_queue_config(config, {"dead_letter": {"stream": "s", "queue": None}})
    assert encode_queue_config(moved)["dead_letter"] == {"stream": "s"}


def test_equal_configurations_have_no_differences() -> None:
    one = parse_queue_config({"labels": {"a": "1", "b": "2"}})
    assert queue_config_differences(one, parse_queue_config({"labels": {"b": "2", "a": "1"}})) == []
