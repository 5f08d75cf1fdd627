"""How a drive that settings name becomes one that is used, whatever happens on the way."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from support.guards import remove
from support.manifest import Crash, ManifestHarness, from_the_first_start
from support.moving import HOT, a_moving_stream
from unit.manifest.test_garbage import collect

from bottomless.drives.base import Body, Drive, DriveUnavailable, Location
from bottomless.errors import Code, Exists, InvalidRequest
from bottomless.formats.checks import crc32c
from bottomless.formats.drive_objects import (
    DRIVE_MARKER_KEY,
    drives_key,
    encode_drives,
    encode_marker,
)
from bottomless.model.drive import DriveMarker, DriveRegistry, RegisteredDrive
from bottomless.model.names import Uid
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.drives.configured import ConfiguredDrive
from bottomless_server.drives.marked import read_marker
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.drives.table import DriveTable, load_registry, open_table
from bottomless_server.manifest.registry.drive_registration import DriveRegistration
from bottomless_server.stores.generation import check_generation

SETTINGS = [ConfiguredDrive("shelf", 1, "shelf"), ConfiguredDrive("cold", 2, "cold")]
FOREIGN = DriveMarker(2, Uid("77" * 16))


class Apart(MemoryDrive):
    """Memory that says where it is, so that two of them are not the same place."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self.before_list: Callable[[], Awaitable[object]] | None = None
        """Happens once, before the next listing."""

    @property
    def location(self) -> Location:
        return Location("apart", self._name)

    def lie_in(self, other: MemoryDrive) -> None:
        """Be another name of the same store."""
        vars(self).update(vars(other))

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectFacts]:
        if self.before_list is not None:
            happen, self.before_list = self.before_list, None
            await happen()
        async for facts in super().list(prefix, after):
            yield facts


class Deployment:
    """A manifest whose settings name two drives."""

    def __init__(
        self, harness: ManifestHarness, table: DriveTable, stores: dict[str, Apart]
    ) -> None:
        self.harness = harness
        self.table = table
        self.stores = stores
        context = from_the_first_start(replace(harness.context, table=table))
        self.registration = DriveRegistration(context)

    async def registry(self) -> DriveRegistry:
        return await load_registry(self.harness.drive)

    async def states(self) -> dict[str, str]:
        return {one["name"]: one["state"] for one in await self.registration.describe()}


async def a_deployment() -> Deployment:
    harness = ManifestHarness()
    stores = {setting.name: Apart(setting.name) for setting in SETTINGS}
    table = await open_table(harness.drive, SETTINGS, lambda setting: stores[setting.name])
    return Deployment(harness, table, stores)


async def put(drive: Drive, object_key: str, data: bytes) -> None:
    await drive.put(object_key, [data], crc32c(data))


async def test_a_drive_is_used_once_it_is_registered_and_again_changes_nothing() -> None:
    there = await a_deployment()
    assert await there.states() == {
        "default": "used",
        "shelf": "unregistered",
        "cold": "unregistered",
    }

    cold = await there.registration.register("cold")

    assert (cold.name, cold.number, cold.retired) == ("cold", 2, False)
    assert await there.registry() == DriveRegistry(2, (cold,))
    assert await read_marker(there.stores["cold"]) == DriveMarker(2, cold.drive_id)
    await put(there.table.of(2), "orders/1", b"one")
    assert await there.states() == {"default": "used", "shelf": "unregistered", "cold": "used"}
    assert await there.registration.register("cold") == cold
    shelf = await there.registration.register("shelf")
    assert await there.registry() == DriveRegistry(4, (shelf, cold))
    assert shelf.drive_id != cold.drive_id


async def test_a_drive_that_no_setting_names_is_unknown_and_nothing_is_written() -> None:
    there = await a_deployment()
    with pytest.raises(InvalidRequest) as raised:
        await there.registration.register("frost")
    assert raised.value.code is Code.DRIVE_UNKNOWN
    assert await there.registry() == DriveRegistry(0, ())


@pytest.mark.parametrize("taken", [("frost", 2), ("cold", 3)])
async def test_a_number_or_name_of_another_drive_is_refused(taken: tuple[str, int]) -> None:
    there = await a_deployment()
    other = RegisteredDrive(*taken, Uid("88" * 16), retired=True)
    await put(there.harness.drive, drives_key(1), encode_drives(DriveRegistry(1, (other,))))

    with pytest.raises(InvalidRequest) as raised:
        await there.registration.register("cold")

    assert raised.value.code is Code.DRIVE_UNKNOWN
    assert await there.registry() == DriveRegistry(1, (other,))


async def test_a_store_that_is_a_drive_already_is_refused_and_nothing_is_written() -> None:
    there = await a_deployment()
    await put(there.stores["cold"], DRIVE_MARKER_KEY, encode_marker(FOREIGN))

    with pytest.raises(Exists) as raised:
        await there.registration.register("cold")

    assert raised.value.code is Code.DRIVE_IN_USE
    assert await there.registry() == DriveRegistry(0, ())
    assert await read_marker(there.stores["cold"]) == FOREIGN


async def test_without_its_guard_a_number_is_given_to_a_store_that_is_never_that_drive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "a drive belongs to one deployment", lambda *_: None)
    there = await a_deployment()
    await put(there.stores["cold"], DRIVE_MARKER_KEY, encode_marker(FOREIGN))

    with pytest.raises(Exists):
        await there.registration.register("cold")
    assert await there.states() == {"default": "used", "shelf": "unregistered", "cold": "retired"}


@pytest.mark.parametrize("ours", [True, False])
async def test_the_first_drive_of_a_deployment_is_refused_under_another_name(ours: bool) -> None:
    there, other = await a_deployment(), ManifestHarness()
    first = there.harness if ours else other
    await check_generation(first.drive, first.coordination)
    there.stores["cold"].lie_in(first.drive)

    with pytest.raises(Exists, match="first drive") as raised:
        await there.registration.register("cold")

    assert raised.value.code is Code.DRIVE_IN_USE
    assert await there.registry() == DriveRegistry(0, ())
    assert await read_marker(first.drive) is None


async def test_without_its_guard_garbage_of_a_second_name_is_all_that_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "drive 0 is no other drive", nothing_is_wrong)
    there, moving = await a_deployment(), await a_moving_stream(3)
    there.stores["cold"].lie_in(moving.harness.drive)
    moving.harness.use_drives(
        await open_table(moving.harness.drive, SETTINGS, lambda one: there.stores[one.name])
    )
    await DriveRegistration(from_the_first_start(moving.harness.context)).register("cold")

    await collect(moving.harness)
    await moving.delete()

    assert len(await moving.leaves()) == 3
    assert await moving.fragments(HOT) == []


async def nothing_is_wrong(*_: object) -> None:
    pass


async def test_a_drive_without_its_marker_is_away_and_is_not_marked_anew() -> None:
    there = await a_deployment()
    await there.registration.register("cold")
    assert await there.stores["cold"].delete([DRIVE_MARKER_KEY]) == {}

    with pytest.raises(DriveUnavailable, match="shows no marker"):
        await there.registration.register("cold")

    assert (await there.states())["cold"] == "away"
    assert await read_marker(there.stores["cold"]) is None


async def test_who_stood_still_marks_no_directory_below_a_mount_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = await a_deployment()

    async def look_and_stand_still(drive: Drive) -> DriveMarker | None:
        found = await read_marker(drive)
        monkeypatch.undo()
        await there.registration.register("cold")
        await there.stores["cold"].delete([DRIVE_MARKER_KEY])
        return found

    monkeypatch.setattr(f"{DriveRegistration.__module__}.read_marker", look_and_stand_still)
    with pytest.raises(DriveUnavailable, match="shows no marker"):
        await there.registration.register("cold")

    assert await read_marker(there.stores["cold"]) is None


async def test_a_retired_drive_comes_back_as_the_same_one() -> None:
    there = await a_deployment()
    cold = await there.registration.register("cold")
    retired = DriveRegistry(3, (cold._replace(retired=True),))
    await put(there.harness.drive, drives_key(3), encode_drives(retired))
    assert (await there.states())["cold"] == "retired"

    assert await there.registration.register("cold") == cold
    assert await there.registry() == DriveRegistry(4, (cold,))


class Dying(Apart):
    """A store on which a process dies at a put of the marker, before it or after it."""

    def __init__(self, *, after: bool) -> None:
        super().__init__("dying")
        self.dies: bool | None = after

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        if object_key != DRIVE_MARKER_KEY or self.dies is None:
            await super().put(object_key, body, crc)
            return
        if self.dies:
            await super().put(object_key, body, crc)
        self.dies = None
        raise Crash


@pytest.mark.parametrize("after", [False, True])
async def test_a_death_at_the_marker_leaves_a_number_that_is_taken_and_the_next_try_goes_on(
    after: bool,
) -> None:
    there = await a_deployment()
    dying = Dying(after=after)
    table = await open_table(
        there.harness.drive,
        SETTINGS,
        lambda setting: dying if setting.name == "cold" else there.stores[setting.name],
    )
    late = Deployment(there.harness, table, there.stores)
    with pytest.raises(Crash):
        await late.registration.register("cold")
    assert (await late.states())["cold"] == "retired", "nobody uses it"
    (taken,) = (await late.registry()).drives

    cold = await late.registration.register("cold")

    assert cold == taken._replace(retired=False)
    assert await read_marker(dying) == DriveMarker(2, taken.drive_id)


@pytest.mark.parametrize("changes", range(5))
async def test_a_death_at_any_change_of_drive_0_leaves_what_the_next_try_goes_on_with(
    changes: int,
) -> None:
    there = await a_deployment()
    there.harness.fuse.left = changes
    with suppress(Crash):
        await there.registration.register("cold")
    there.harness.fuse.left = None

    cold = await there.registration.register("cold")

    registry = await there.registry()
    assert registry.drives == (cold,)
    assert registry.version == 2
    assert await read_marker(there.stores["cold"]) == DriveMarker(2, cold.drive_id)


async def test_two_that_register_at_once_make_one_drive() -> None:
    there = await a_deployment()
    other = Deployment(there.harness, there.table, there.stores)
    # The probe lists: by then this try has seen that nobody has registered the drive.
    there.stores["cold"].before_list = lambda: other.registration.register("cold")

    cold = await there.registration.register("cold")

    assert await there.registry() == DriveRegistry(2, (cold,))
    assert await read_marker(there.stores["cold"]) == DriveMarker(2, cold.drive_id)
