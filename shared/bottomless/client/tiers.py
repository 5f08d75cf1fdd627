"""Calls about the drives on which a stream's fragments lie, and the moves between them."""

from typing import Any

from bottomless.client.address import move_path, stream_path
from bottomless.client.wire import Wire, members


class TierCalls(Wire):
    """The calls of `openapi/manifest.yaml` about tiers."""

    async def tiers(self, name: str) -> dict[str, Any]:
        """Show what of a stream lies on which drive: fragments, bytes, records and times by drive.

        Besides the policy, the moves that are under way, what was promoted, and what is `damaged` so
        that it cannot be moved.
        """
        return members(await self._send("GET", f"{stream_path(name)}/tiers"))

    async def preview_tiers(self, name: str) -> dict[str, Any]:
        """Show what a stream's policy wants moved now: the next `moves`, and all that is `waiting`.

        What is `damaged` is among neither until it is tried again.
        """
        return await self._send_json("POST", f"{stream_path(name)}/tiers/preview", {})

    async def evaluate_tiers(self, name: str) -> dict[str, Any]:
        """Enter the next moves that a stream's policy wants; otherwise a timer does it.

        Returns the `moves` that were entered, for as many as there was room.
        """
        return await self._send_json("POST", f"{stream_path(name)}/tiers/evaluate", {})

    async def move_fragments(
        self, name: str, from_offset: int, to_offset: int, drive: str
    ) -> dict[str, Any]:
        """Move the fragments that lie whole between two offsets to a drive, which has a name.

        `to_offset` is exclusive. Returns the `moves` that were entered, and what is `left` since there
        was no room for it: the same again goes on with that.

        Raises:
            InvalidRequest: `drive-unknown`, there is no such drive; `offset-beyond-end`, not all of it
                is in object storage.
            Unavailable, Overloaded: as many moves are under way as may be.
        """
        value = {"from_offset": from_offset, "to_offset": to_offset, "drive": drive}
        return await self._send_json("POST", f"{stream_path(name)}/moves", value)

    async def promote_fragments(
        self, name: str, from_offset: int, to_offset: int
    ) -> dict[str, Any]:
        """Move the fragments that lie whole between two offsets one tier up, where they stay a while.

        `to_offset` is exclusive; the answer is as that of `move_fragments`.

        Raises:
            InvalidRequest: the stream has no tiers; `offset-beyond-end`, not all of it is in object
                storage.
            Unavailable, Overloaded: as many moves are under way as may be, or as much is promoted.
        """
        value = {"from_offset": from_offset, "to_offset": to_offset}
        return await self._send_json("POST", f"{stream_path(name)}/tiers/promote", value)

    async def give_up_move(self, name: str, move: str) -> None:
        """End a move that is under way; its fragments stay where they are.

        Raises:
            NotFound: `not-found`: it has ended already.
        """
        await self._send("DELETE", move_path(name, move))
