"""Describe super streams as JSON for the public. Pure."""

from typing import Any, Final

from bottomless.model.offset_spec import format_timestamp
from bottomless.model.routing import SEED, Strategy
from bottomless.model.super_stream import Partition, SuperRecord
from bottomless_server.manifest.registry.stream_description import Shown, describe_config

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
        **describe_config(record.config, shown),
    }


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
