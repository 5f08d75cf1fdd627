"""Remember what became of registered fragments, for requests that wait to hear it."""

from collections import OrderedDict
from typing import Final

from bottomless.model.names import Uid
from bottomless_server.manifest.tree.core.events import Why

FragmentOutcome = Why | bool | None
"""True if applied, why it was refused, False if it waits, None if it is not known here."""

_COUNT_MAX: Final = 4_096
"""Outcomes that are kept; an older one is looked up in the tree when somebody asks again."""


class FragmentOutcomes:
    """The last few thousand outcomes of one stream's fragments."""

    def __init__(self) -> None:
        self.count = 0
        """Grows with everything that becomes of a fragment."""
        self._outcomes: OrderedDict[Uid, FragmentOutcome] = OrderedDict()

    def of(self, uid: Uid) -> FragmentOutcome:
        return self._outcomes.get(uid)

    def note(self, uid: Uid, outcome: FragmentOutcome) -> None:
        self.count += 1
        self._outcomes[uid] = outcome
        self._outcomes.move_to_end(uid)
        if len(self._outcomes) > _COUNT_MAX:
            self._outcomes.popitem(last=False)

    def forget(self, uid: Uid) -> None:
        self._outcomes.pop(uid, None)
