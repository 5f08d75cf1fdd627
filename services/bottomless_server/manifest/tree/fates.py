"""What became of fragments, for those who wait to hear it."""

from collections import OrderedDict
from typing import Final

from bottomless.model.names import Uid
from bottomless_server.manifest.tree.core.events import Why

Fate = Why | bool | None
"""True if applied, why it was refused, False if it waits, None if it is not known here."""

_COUNT_MAX: Final = 4_096
"""Older ones are looked up in the tree when somebody asks again."""


class Fates:
    """The last few thousand fates of one stream's fragments."""

    def __init__(self) -> None:
        self.count = 0
        """Grows with everything that becomes of a fragment."""
        self._fates: OrderedDict[Uid, Fate] = OrderedDict()

    def of(self, uid: Uid) -> Fate:
        return self._fates.get(uid)

    def note(self, uid: Uid, fate: Fate) -> None:
        self.count += 1
        self._fates[uid] = fate
        self._fates.move_to_end(uid)
        if len(self._fates) > _COUNT_MAX:
            self._fates.popitem(last=False)

    def forget(self, uid: Uid) -> None:
        self._fates.pop(uid, None)
