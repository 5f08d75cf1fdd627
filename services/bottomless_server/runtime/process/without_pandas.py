"""Pandas: nothing here uses it, and where it is installed it must not be loaded either.

PyArrow looks for it at the first conversion of a value. In a service that would be in the
midst of the first append: a second in which the event loop stands still, and some 60 MiB
that nobody needs.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


class _Absent(MetaPathFinder):
    """Finds one module to be absent; of others it knows nothing."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not loaded here", name=fullname)


def forgo_pandas() -> None:
    """Let no import of pandas succeed in this process, unless it is loaded already."""
    # Not a None among the loaded modules: compiled code takes that for the module itself.
    sys.meta_path.insert(0, _Absent())
