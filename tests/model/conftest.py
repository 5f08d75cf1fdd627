"""A seed of a model tells the same story in each process, and in no more time than it takes."""

from functools import lru_cache
from typing import Final

from support import manifest
from support.same_examples import read_nothing_in_sources

from bottomless_server.stores import streams, tails

RECORD_COUNT_MAX: Final = 4_096

read_nothing_in_sources()

# A model looks at the same records after each step, and imagines what would become of them. They
# cannot be changed, so what their bytes say is read once.
for module in (streams, tails, manifest):
    setattr(module, "decode_record", lru_cache(RECORD_COUNT_MAX)(module.decode_record))  # noqa: B010
