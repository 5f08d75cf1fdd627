"""The public paths of the manifest, put together; each subject has a file of its own.

Contract: openapi/manifest.yaml.
"""

from fastapi import FastAPI

from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.consumers.consumer_routes import add_consumer_routes
from bottomless_server.manifest.consumers.consumer_snapshots import ConsumerSnapshots
from bottomless_server.manifest.consumers.group_changes import GroupChanges
from bottomless_server.manifest.consumers.group_routes import add_group_routes
from bottomless_server.manifest.consumers.group_watch import GroupWatch
from bottomless_server.manifest.front.discovery_routes import add_discovery_routes
from bottomless_server.manifest.front.index_page import add_index_routes
from bottomless_server.manifest.keys.key_routes import add_key_routes
from bottomless_server.manifest.keys.keys import Keys
from bottomless_server.manifest.leaderless.wal_routes import add_wal_routes
from bottomless_server.manifest.mutators.bounds import StreamBounds
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.operations.operation_routes import add_operation_routes
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.recovery.rebuild import Rebuild
from bottomless_server.manifest.recovery.recovery_routes import add_recovery_routes
from bottomless_server.manifest.registry.drive_routes import add_drive_routes
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.removal.garbage_routes import add_garbage_routes
from bottomless_server.manifest.removal.lease_routes import add_lease_routes
from bottomless_server.manifest.removal.retention_routes import add_retention_routes
from bottomless_server.manifest.removal.retirement_routes import add_retirement_routes
from bottomless_server.manifest.streams.deletion import Deletions
from bottomless_server.manifest.streams.node_routes import add_node_routes
from bottomless_server.manifest.streams.replica_routes import add_replica_routes
from bottomless_server.manifest.streams.stream_routes import add_stream_routes
from bottomless_server.manifest.streams.super_deletion import SuperDeletions
from bottomless_server.manifest.streams.super_growth import SuperGrowth
from bottomless_server.manifest.streams.super_routes import add_super_routes
from bottomless_server.manifest.streams.tier_routes import add_tier_routes
from bottomless_server.manifest.streams.tree_routes import add_tree_routes
from bottomless_server.runtime.http.app import create_api
from bottomless_server.runtime.http.contract import describe
from bottomless_server.runtime.http.paging import Paging


def public_api(
    context: Context,
    registry: Registry,
    mutators: Mutators,
    operations: Operations,
    deletions: Deletions,
    growth: SuperGrowth,
    super_deletions: SuperDeletions,
    snapshots: ConsumerSnapshots,
    rebuild: Rebuild,
    keys: Keys,
    groups: GroupChanges,
    watch: GroupWatch,
) -> FastAPI:
    api = create_api("Bottomless manifest")
    describe(api)
    bounds, paging = StreamBounds(context, mutators), Paging(context.coordination)
    add_stream_routes(api, context, registry, bounds, deletions, paging)
    add_super_routes(api, context, registry, growth, super_deletions, paging)
    add_consumer_routes(api, context, registry, bounds, snapshots, paging)
    add_group_routes(api, context, registry, bounds, groups, watch, paging)
    add_operation_routes(api, operations, paging)
    add_index_routes(api)
    add_discovery_routes(api, context)
    add_retention_routes(api, context, registry, mutators, operations)
    add_lease_routes(api, context, registry)
    add_recovery_routes(api, context, registry, operations, rebuild)
    add_garbage_routes(api, context, registry, operations)
    add_tree_routes(api, context, registry, operations)
    add_tier_routes(api, context, registry, mutators)
    add_key_routes(api, context, keys, paging)
    add_wal_routes(api, context)
    add_drive_routes(api, context)
    add_replica_routes(api, context, registry, operations)
    add_node_routes(api, context, operations)
    add_retirement_routes(api, context, operations, mutators)
    return api
