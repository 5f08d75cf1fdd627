"""Guards of the product in processes of their own, with what it is to run without each: text that
Python runs at its start.

A guard that can be taken out without a run noticing guards nothing, or the run is blind.
"""

import os
from pathlib import Path
from typing import Final

_TESTS: Final = Path(__file__).parents[1]
NO_CONDITION: Final = """
import dataclasses
from bottomless_server.ingest.local import waiting
decide = waiting.decide_waiting
def decide_without(tracking, append, *when):
    anywhere = dataclasses.replace(append.conditions, expected_offset=None)
    return decide(tracking, dataclasses.replace(append, conditions=anywhere), *when)
waiting.decide_waiting = decide_without
"""
NO_MEMORY_OF_PRODUCERS: Final = """
import dataclasses
from bottomless_server.ingest.local import waiting
decide = waiting.decide_waiting
def decide_without(tracking, append, *when):
    from_nobody = dataclasses.replace(append.conditions, identity=None)
    return decide(tracking, dataclasses.replace(append, conditions=from_nobody), *when)
waiting.decide_waiting = decide_without
"""
NO_DIRTY_MARK: Final = """
import dataclasses
import bottomless_server.node.core.ownership as ownership
claim = ownership.claim
def claim_without(record, *view, **held):
    return claim(dataclasses.replace(record, dirty=False), *view, **held)
ownership.claim = claim_without
"""
ANSWER_FIRST: Final = """
import asyncio
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.ingest.producers.producers import Appended
append_chosen = LocalAppender._append_chosen
async def answer_first(self, taken, timestamp, *rest):
    first = self.log.committed_next
    for one in taken:
        count = one.append.record_count
        answer = Appended(first, first + count, timestamp, count, one.duplicates)
        self._waiting.settle(one.waiting, answer)
        first += count
    await asyncio.sleep(0.05)
    await append_chosen(self, taken, timestamp, *rest)
LocalAppender._append_chosen = answer_first
"""
"""On a disk that takes 50 ms for it."""

TAIL_NOT_WATCHED: Final = """
import asyncio
from bottomless_server.ingest.leaderless import commits
from bottomless_server.stores.tail_keys import tail_key
commit = commits.commit
class Unwatched:
    def __init__(self, coordination):
        self._coordination = coordination
    def __getattr__(self, name):
        return getattr(self._coordination, name)
    async def transact(self, keys, decide, **how):
        tails = [key for key in keys if key.startswith(tail_key(""))]
        early = dict(zip(tails, await self._coordination.get_many(tails)))
        await asyncio.sleep(0.05)
        others = [key for key in keys if key not in early]
        return await self._coordination.transact(
            others, lambda values: decide({**values, **early}), **how
        )
def commit_unwatched(coordination, *given, **named):
    return commit(Unwatched(coordination), *given, **named)
commits.commit = commit_unwatched
"""
"""The tails that a commit changes are read 50 ms before it, and not among the keys it watches."""

NO_GENERATION: Final = """
import bottomless_server.stores.groups
from support.guards import replace
replace("the generation in the commit's EXEC", lambda *_: None)
"""


def without(directory: Path, guard: str) -> dict[str, str]:
    """The environment of processes that run without a guard."""
    directory.mkdir(exist_ok=True)
    (directory / "sitecustomize.py").write_text(guard)
    # The program finds `support.guards`, by which a guard is found.
    places = [str(directory), str(_TESTS), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(places)}
