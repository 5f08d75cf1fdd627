"""API keys of a manifest service in memory: what its callers and a gate see of them."""

from bottomless.errors import NotFound
from bottomless.model.api_key import ApiKey, KeyId, hash_secret
from bottomless_server.manifest.keys.keys import Issued, Keys
from bottomless_server.stores.generation import check_generation
from support.manifest import ManifestHarness

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def nobody_checks(_: ApiKey) -> None:
    pass


async def a_harness(**settings: object) -> ManifestHarness:
    """Empty stores that belong together."""
    harness = ManifestHarness(**settings)
    harness.streams.generation = await check_generation(harness.drive, harness.coordination)
    return harness


async def create(keys: Keys, *, tenant: str = "acme", ends_at: int | None = None) -> Issued:
    return await keys.create(
        tenant=tenant, label="load", scopes=("append:orders-*",), ends_at=ends_at, actor="key:root"
    )


async def is_good(harness: ManifestHarness, credential: str) -> bool:
    """What a gate finds that asks now."""
    _, key_id, secret = credential.split("_", 2)
    try:
        record = await Keys(harness.context).records.find(KeyId(key_id))
    except NotFound:
        return False
    good = record.key.good_secrets(harness.clock())
    return hash_secret(secret) in [one.sha256 for one in good]
