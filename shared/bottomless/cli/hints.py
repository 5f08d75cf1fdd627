"""Hints: what to do after a refusal, where that depends on the command and not on the code alone."""

from typing import Final

from bottomless.errors import Code

_MOVE: Final = (
    "`bottomless replicas move` has another node own the stream, once that has everything"
)
_NODES: Final = "`bottomless nodes ls` shows the nodes"
_NOBODY_YET: Final = (
    "`bottomless replicas status` shows its nodes: where it has none, append to it first, and where its owner "
    "has died, another one goes on after the lease, if it can"
)

_HINTS: Final = {
    ("replicas rm", Code.HOME_LIVE): _MOVE,
    ("replicas rm", Code.NOT_IN_SYNC): (
        "`bottomless replicas status` shows who has everything: wait for another one, or add one"
    ),
    ("replicas move", Code.NOT_IN_SYNC): (
        "`bottomless replicas status` shows who has everything, and `bottomless replicas add` has "
        "another node hold the stream"
    ),
    ("replicas add", Code.NOT_IN_SYNC): f"{_NODES} that live",
    ("replicas add", Code.NOT_OWNER): _NOBODY_YET,
    ("replicas move", Code.NOT_OWNER): _NOBODY_YET,
    ("replicas rm", Code.NOT_OWNER): _NOBODY_YET,
    ("admin takeover", Code.HOME_LIVE): (
        "nothing is lost: `bottomless replicas status` shows which node is the home, first of all, and "
        "whether it lives: its lease runs out some seconds after its end"
    ),
    ("tiers give-up", Code.NOT_FOUND): "`bottomless tiers show` lists the moves that are under way",
    ("drives add", Code.DRIVE_IN_USE): (
        "`bottomless drives ls` shows the drives: name another store in BOTTOMLESS_DRIVES"
    ),
    ("drives retire", Code.DRIVE_IN_USE): (
        "where a stream is named, `bottomless tiers show` shows what it has there, "
        "`bottomless tiers move` moves it away, and `bottomless update --tiers` takes the drive out of "
        "its policy, `bottomless super update --tiers` out of that of a super stream. What waits to be deleted is kept for readers for an hour by default"
    ),
    ("drives lost", Code.DRIVE_IN_USE): "`bottomless drives retire` retires a drive that is there",
    ("nodes evacuate", Code.NOT_FOUND): _NODES,
    ("nodes evacuate", Code.NOT_IN_SYNC): (
        "`bottomless operations show` names streams that are left, and says why"
    ),
}


def hint_for(command: str, code: Code) -> str | None:
    """What to do after a command, as `replicas rm`, was refused with a code; None if the code says enough."""
    return _HINTS.get((command, code))
