"""A process that stands still between a plan and its root: what it names may be gone when it goes on."""

import pytest
from support import guards
from support.manifest import STREAM, ManifestHarness

from bottomless.drives.base import DriveUnavailable
from bottomless_server.manifest.mutators.sessions import begin, intend
from bottomless_server.manifest.tree.committer import Committer


async def refuse() -> None:
    raise DriveUnavailable("the store is down", retryable=False)


async def roots_after_a_stand_still(*, given_up: bool = True) -> tuple[list[str], int]:
    """The keys of roots that are put by who wakes up after two hours in which its uploads were given up,
    and where the manifest ends then."""
    harness = ManifestHarness()
    slept = await harness.open()
    (uid,) = await intend(harness.context, slept, "s1", [0])
    info = await harness.put_fragment(uid, 0)
    await slept.register("s1", [info])
    # At once, and not at the end of the time that a put may be tried for.
    harness.drive.before_put = refuse
    await slept.flush()
    assert harness.drive.before_put is None
    assert (await harness.record()).published_next == 0
    if given_up:
        other = await Committer.open(harness.context, STREAM)
        await begin(harness.context, other, "s2")
    harness.clock.now += 2 * harness.context.settings.manifest_upload_deadline_ms
    harness.drive.calls.clear()
    await slept.flush()
    puts = [key for what, key in harness.drive.calls if what == "put" and "/root." in key]
    return puts, (await harness.record()).published_next


async def test_who_wakes_up_puts_no_root_of_what_was_given_up() -> None:
    assert await roots_after_a_stand_still() == ([], 0)


async def test_who_wakes_up_publishes_what_still_holds() -> None:
    puts, published_next = await roots_after_a_stand_still(given_up=False)
    assert len(puts) == 1
    assert published_next == 10


async def test_without_the_look_before_it_the_late_root_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guards.remove(monkeypatch, "a look before a late root", lambda *_: False)
    puts, published_next = await roots_after_a_stand_still()
    assert len(puts) == 1
    assert published_next == 0
