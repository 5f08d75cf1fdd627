"""The generation: what ties a coordination store and a bucket to each other.

Both hold the same number. A rebuild from the bucket raises it, so a coordination
store from before, or one that was lost and came back empty, is noticed before it
can give out epochs and offsets a second time.

At the first start both are created. After a crash that follows each step:

1. coordination has it, not confirmed: the next start goes on with step 2;
2. both have it, not confirmed: the next start confirms;
3. coordination has it, confirmed: from now on a bucket without it is another bucket.

A rebuild raises both, the bucket first. Objects are never overwritten, so each generation
after the first has an object of its own, and the highest counts. After a crash between the
two they do not agree, as before. Nobody can tell then whose the bucket's generation is, so that
rebuild fails, and one that is asked for anew goes to the generation after it.

A generation counts from then on, and not before: what lies in the bucket under a higher number
than its own is of a rebuild that did not end, and is believed by nobody.
"""

from typing import Final

import orjson

from bottomless.drives.base import Drive, ObjectMissing
from bottomless.errors import Code, Corrupt, Unavailable
from bottomless.formats import keys
from bottomless.formats.checks import crc32c
from bottomless_server.coordination.base import Changes, Coordination, Values
from bottomless_server.core.regressed import REBUILD
from bottomless_server.stores.put_retries import put_object
from bottomless_server.stores.rebuild_step import RebuildStep
from bottomless_server.stores.streams import GENERATION_KEY

GENERATION_FIRST: Final = 0
PUT_SECONDS: Final = 60.0


async def check_generation(drive: Drive, coordination: Coordination) -> int:
    """The generation on which bucket and coordination agree; called once, at start.

    Raises:
        Unavailable: `coordination-regressed`: they do not agree; an operator restores the
            one or rebuilds the other.
        CoordinationUnavailable, CoordinationUnknown, DriveUnavailable, DriveRefused: not now.
        Corrupt: one of them holds no generation under its key.
    """
    # The bucket first: another process may create both meanwhile, coordination first,
    # and what we find in the bucket must then be in coordination too.
    stored = await stored_generation(drive)
    held = await coordination.get(GENERATION_KEY)
    if stored is None and held is not None and _confirmed(held):
        # Somebody may have done all three steps between the two reads.
        stored = await stored_generation(drive)
        if stored is None:
            raise _regressed()
    if stored is not None and (held is None or decode_generation(held) != stored):
        raise _regressed()
    if stored is None:
        stored = decode_generation(held or await _create(coordination))
        data = encode_generation(stored)
        try:
            await put_object(
                drive, keys.GENERATION_KEY, [data], crc32c(data), deadline_seconds=PUT_SECONDS
            )
        except Corrupt as error:
            raise _regressed() from error
    if held is None or not _confirmed(held):
        await _confirm(coordination, stored)
    return stored


async def is_regressed(drive: Drive, coordination: Coordination) -> int | None:
    """The bucket's generation, if coordination is empty or of an older one; else None.

    Raises:
        CoordinationUnavailable, DriveUnavailable, DriveRefused, Corrupt
    """
    stored = await stored_generation(drive)
    held = await held_generation(coordination)
    if stored is None or (held is not None and held >= stored):
        return None
    return stored


async def held_generation(coordination: Coordination) -> int | None:
    """Read the generation that coordination shows, None where there is none.

    Raises:
        CoordinationUnavailable, Corrupt
    """
    held = await coordination.get(GENERATION_KEY)
    return None if held is None else decode_generation(held)


async def raise_generation(drive: Drive, coordination: Coordination, step: RebuildStep) -> None:
    """Make a rebuild's generation the one of both: its last step.

    Raises:
        Corrupt: the bucket holds something else under its key.
        Unavailable: the step is not what goes on; or not now.
    """
    generation = step.generation
    await step.check(coordination)
    data = encode_generation(generation)
    await put_object(
        drive,
        keys.generation_key(generation),
        [data],
        crc32c(data),
        deadline_seconds=PUT_SECONDS,
    )
    confirmed = orjson.dumps({"generation": generation, "bucket": True})

    def change(values: Values) -> tuple[Changes, None]:
        step.require(values)
        return Changes({GENERATION_KEY: confirmed}), None

    await coordination.transact(step.watched, change)


async def stored_generation(drive: Drive) -> int | None:
    """What the bucket shows, None where there is nothing.

    Raises:
        DriveUnavailable, DriveRefused, Corrupt
    """
    raised = [
        keys.parse_generation_key(facts.object_key)
        async for facts in drive.list(keys.GENERATION_PREFIX)
    ]
    newest = max((one for one in raised if one is not None), default=None)
    if newest is not None:
        return newest
    try:
        return decode_generation(bytes(await drive.get(keys.GENERATION_KEY)))
    except ObjectMissing:
        return None


async def _create(coordination: Coordination) -> bytes:
    """Create the first generation, or return the one that somebody else just created."""

    def create(values: Values) -> tuple[Changes, bytes]:
        if found := values[GENERATION_KEY]:
            return Changes(), found
        first = encode_generation(GENERATION_FIRST)
        return Changes({GENERATION_KEY: first}), first

    return await coordination.transact([GENERATION_KEY], create)


async def _confirm(coordination: Coordination, generation: int) -> None:
    """Note that the bucket has the generation too."""

    def change(values: Values) -> tuple[Changes, None]:
        found = values[GENERATION_KEY]
        if found is None or decode_generation(found) != generation:
            raise _regressed()
        confirmed = orjson.dumps({"generation": generation, "bucket": True})
        return Changes({GENERATION_KEY: confirmed}), None

    await coordination.transact([GENERATION_KEY], change)


def _confirmed(held: bytes) -> bool:
    decode_generation(held)
    return orjson.loads(held).get("bucket") is True


def encode_generation(generation: int) -> bytes:
    """Encode a generation as bucket and coordination hold it."""
    return orjson.dumps({"generation": generation})


def decode_generation(data: bytes) -> int:
    """Read a generation.

    Raises:
        Corrupt: nobody can have written these bytes.
    """
    try:
        generation = orjson.loads(data)["generation"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise Corrupt("the generation is not readable") from error
    if type(generation) is not int or generation < 0:
        raise Corrupt("the generation is not a number")
    return generation


def _regressed() -> Unavailable:
    return Unavailable(
        "the coordination store and the bucket do not belong together: bring back the one that "
        f"belongs to the other, or, if coordination is empty or older, run `{REBUILD}`",
        code=Code.COORDINATION_REGRESSED,
        retryable=False,
    )
