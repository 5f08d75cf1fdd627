"""Describe super streams as JSON for the public. Pure."""

from typing import Any, Final

from bottomless.model.offset_spec import format_timestamp
from bottomless.model.routing import (
    NO_ROUTE,
    SEED,
    Strategy,
    keys_of,
    partitions_by_hash,
    partitions_by_key,
)
from bottomless.model.super_stream import Partition, SuperRecord
from bottomless_server.manifest.registry.stream_description import (
    Shown,
    describe_config,
    describe_replication,
)

_HASH: Final = f"murmur3_32/{SEED}"


def describe_super(record: SuperRecord, shown: Shown) -> dict[str, Any]:
    """The answer of PUT and GET on a super stream."""
    return {
        **describe_super_item(record, shown),
        "partitions": [describe_partition(one) for one in record.partitions],
        "layouts": [
            {
                "version": one.version,
                "partitions": one.count,
                "created_at": format_timestamp(one.created_at),
            }
            for one in record.layouts
        ],
    }


def describe_super_item(record: SuperRecord, shown: Shown) -> dict[str, Any]:
    """One super stream of a list."""
    return {
        "name": record.name,
        "super_id": record.super_id,
        "state": record.state.value,
        "created_at": format_timestamp(record.created_at),
        "strategy": record.strategy.value,
        "hash": _HASH if record.strategy is Strategy.HASH else None,
        "partition_count": len(record.partitions),
        "config_version": record.config_version,
        "etag": super_etag(record),
        **describe_replication(record.config, shown),
        **describe_config(record.config, shown),
    }


def partition_of_key(record: SuperRecord, key: bytes) -> Partition | None:
    """Find the partition to which a record with this key goes; None if no partition takes it."""
    keys = keys_of([key])
    if record.strategy is Strategy.HASH:
        return record.partitions[int(partitions_by_hash(keys, len(record.partitions))[0])]
    bound = [(one.binding_key or "").encode("utf-8") for one in record.partitions]
    found = int(partitions_by_key(keys, bound)[0])
    return None if found == NO_ROUTE else record.partitions[found]


def describe_partition(one: Partition) -> dict[str, Any]:
    """One partition, by which stream it is."""
    return {
        "index": one.index,
        "stream": one.name,
        "stream_id": one.stream_id,
        "binding_key": one.binding_key,
    }


def super_etag(record: SuperRecord) -> str:
    """It changes with the configuration and with the number of partitions."""
    return f'"{record.super_id}.c{record.config_version}.l{record.layouts[-1].version}"'
