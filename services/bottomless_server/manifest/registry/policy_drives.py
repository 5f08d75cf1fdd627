"""Which drives the policy of a stream may name: those that are registered, and known here.

A policy is looked at before it is written. A drive that is about to be retired may not be named either:
who retires it looks at all policies once. A drive that is retired in between is named all the same; whatever the policy then wants there is refused when it is to be put.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.drive import DEFAULT_NAME
from bottomless.model.tiers import TierConfig
from bottomless_server.drives.table import load_registry
from bottomless_server.manifest.common.context import Context


async def usable_drives(context: Context) -> frozenset[str]:
    """The names of the drives on which fragments may be put, `default` among them.

    Raises:
        Corrupt, DriveUnavailable, DriveRefused: the registry of drives cannot be read.
    """
    registry = await load_registry(context.drive)
    configured = {(drive.name, drive.number) for drive in context.drives.configured}
    return frozenset({DEFAULT_NAME}) | {
        drive.name
        for drive in registry.drives
        if drive.is_open and (drive.name, drive.number) in configured
    }


def require_usable(tiers: Sequence[TierConfig], usable: AbstractSet[str]) -> None:
    """Refuse a policy that names another drive than those that may be used.

    Raises:
        InvalidRequest: `drive-unknown`, with a pointer to each tier.
    """
    sentence = "is none of the registered drives"
    faults = [
        Fault("drive-unknown", sentence, f"/tiers/{number}/drive")
        for number, tier in enumerate(tiers)
        if tier.drive not in usable
    ]
    if faults:
        raise InvalidRequest(
            "a tier names a drive that is not registered, or that the settings of the manifest service"
            " do not have; register it with POST /v1/admin/drives",
            code=Code.DRIVE_UNKNOWN,
            faults=faults,
        )
