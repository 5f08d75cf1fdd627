"""Finish a takeover whose fence is in the record: adopt what is durable, then the gap.

Whoever touches the stream next does it, in whichever process: the operation, a mutator that
takes the stream up, a new session of an uploader. After a crash at any step the record says that
the gap is due, nobody can claim the stream, and the same again goes on. First what is durable is
published (`adopting.py`), then one EXEC names the root with the gap up to `reserved_next`, and
frees the stream. Before it that root is an object which nobody names, and of an epoch that exists.
"""

from bottomless.model.manifest import Node
from bottomless.model.stream import StreamRecord, gap_due
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators.adopting import publish_gap
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.events import Edit
from bottomless_server.manifest.tree.core.takeovers import end_of_takeover


async def free(context: Context, committer: Committer) -> None:
    """Do what a takeover has left to do, if there is any; afterwards nothing is due.

    Raises:
        NotFound, Unavailable, Corrupt: not now; the same again is right.
    """
    if gap_due(committer.record) is not None:
        await publish_gap(context, committer, _gap)


async def _gap(record: StreamRecord, _: Node) -> Edit | None:
    return end_of_takeover(record)
