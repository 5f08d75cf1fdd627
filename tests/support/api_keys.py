"""API keys of a manifest service in memory: what its callers and a gate see of them."""

from bottomless.errors import NotFound
from bottomless.model.api_key import ApiKey, KeyId, hash_secret
from bottomless_server.manifest.keys.keys import Issued, Keys
from bottomless_server.stores.generation import check_generation
from support.manifest import World

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def nobody_checks(_: ApiKey) -> None:
    pass


async def a_world(**settings: object) -> World:
    """Empty stores that belong together."""
    world = World(**settings)
    world.streams.generation = await check_generation(world.drive, world.coordination)
    return world


async def create(keys: Keys, *, tenant: str = "acme", ends_at: int | None = None) -> Issued:
    return await keys.create(
        tenant=tenant, label="load", scopes=("append:orders-*",), ends_at=ends_at, actor="key:root"
    )


async def is_good(world: World, credential: str) -> bool:
    """What a gate finds that asks now."""
    _, key_id, secret = credential.split("_", 2)
    try:
        record = await Keys(world.context).records.find(KeyId(key_id))
    except NotFound:
        return False
    good = record.key.good_secrets(world.clock())
    return hash_secret(secret) in [one.sha256 for one in good]
