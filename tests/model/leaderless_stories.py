"""The stories that are searched to the end: each leaves some of what may go wrong to the others.

All of it together would be more states than anybody can look at; a guard that is taken away is missed
in a few hundred states of its story, or some thousand.
"""

from typing import Final

from model.leaderless_state import Flush, Story, instance_of
from model.stepping import Task

_FIRST: Final = instance_of(0, 0)
SETTLE: Final = Task("settle", (_FIRST,))
RECLAIM: Final = Task("reclaim", (_FIRST,))
VACUUM: Final = (SETTLE, RECLAIM)
PRUNE: Final = (Task("prune", (0,)), Task("prune", (1,)))
RELEASE: Final = (Task("release", (_FIRST, 0)), Task("release", (_FIRST, 1)))
_RECLAIMING: Final = (*VACUUM, PRUNE[0], RELEASE[0])

BOTH: Final = ((0, 1),)
"""Two streams in one EXEC."""
HALVES: Final = ((0,), (1,))
"""One EXEC for each of two streams."""
_ONE: Final = (Flush(0, ((0,),)),)
_TWO: Final = (Flush(0, HALVES), Flush(1, ((0,),)))

STORIES: Final[dict[str, Story]] = {
    "lost commits of two writers": Story(
        ((Flush(0, BOTH), Flush(1, ((0,),))), (Flush(0, ((1,),)), Flush(1, HALVES))),
        troubles=3,
        publishes=False,
    ),
    "lost commits of one stream": Story((_ONE, _ONE), troubles=3, publishes=False),
    "a fence": Story((_TWO, _ONE), fences=1, troubles=1, publishes=False),
    "prunes": Story((_TWO, _ONE), tasks=PRUNE),
    "a vacuum beside a writer that stands still": Story(
        (_ONE, _ONE), tasks=VACUUM, lapses=1, publishes=False
    ),
    "a vacuum, late EXECs and a second instance": Story(
        (_TWO, _ONE), tasks=VACUUM, lapses=1, troubles=1, publishes=False
    ),
    "all that reclaims": Story((_ONE, _ONE), tasks=_RECLAIMING, lapses=1),
    "two tasks at once": Story((_ONE, _ONE), tasks=_RECLAIMING, task_count=2, lapses=1),
    "notes": Story((_TWO[:1], _ONE), loses=True, note_objects=1, troubles=1),
    "notes before answers": Story(
        (_TWO[:1], _ONE), loses=True, note_objects=1, troubles=2, sync=True
    ),
    "repeats before notes": Story(
        (_TWO[:1], ()), loses=True, note_objects=2, troubles=1, sync=True, repeats=True
    ),
    "puts that overlap": Story(
        (_TWO, ()), loses=True, puts_overlap=True, note_objects=1, troubles=1, publishes=False
    ),
    "more notes than fit into an object": Story(
        (_TWO, ()),
        loses=True,
        puts_overlap=True,
        note_objects=2,
        notes_of_object=1,
        publishes=False,
    ),
    "a loss during what reclaims": Story((_ONE, _ONE), tasks=_RECLAIMING, loses=True),
    "a loss after objects are gone": Story(
        (_TWO, ()), tasks=(RECLAIM, PRUNE[0], *RELEASE), loses=True, note_objects=1
    ),
}
