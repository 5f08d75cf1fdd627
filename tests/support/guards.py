"""Take a guard of the product away: another function is put in its place, wherever it is known.

Guards are found by their names (`bottomless/guards.py`), so a test does not know where one lies.
"""

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from bottomless.guards import GUARDS

if TYPE_CHECKING:  # services that run without a guard need not wait for all of it
    import pytest


def guarded(name: str) -> Callable[..., Any]:
    """The guard itself, for what is to take its place and needs it."""
    return GUARDS[name]


def remove(patch: "pytest.MonkeyPatch", name: str, variant: Callable[..., Any]) -> None:
    """Let `variant` be called in the place of a guard, for as long as the patch lasts."""
    for owner, attribute, stands in _places(name, variant):
        patch.setattr(owner, attribute, stands)


def replace(name: str, variant: Callable[..., Any]) -> None:
    """The same for as long as this process lives."""
    for owner, attribute, stands in _places(name, variant):
        setattr(owner, attribute, stands)


def _places(name: str, variant: Callable[..., Any]) -> list[tuple[Any, str, Any]]:
    """Where something has to stand in the place of a guard, and what."""
    places = list(_known(GUARDS[name]))
    assert places, f"nobody knows the guard: {name}"
    return [
        (owner, attribute, property(variant) if isinstance(known, property) else variant)
        for owner, attribute, known in places
    ]


def _known(function: Callable[..., Any]) -> Iterator[tuple[Any, str, Any]]:
    """Where the product knows a function: in its class, or in each module that imports it."""
    of_class = function.__qualname__.rpartition(".")[0]
    if of_class:
        owner = getattr(sys.modules[function.__module__], of_class)
        yield owner, function.__name__, vars(owner)[function.__name__]
        return
    for name, module in sys.modules.copy().items():
        if name.partition(".")[0] in {"bottomless", "bottomless_server"}:
            for attribute, known in list(vars(module).items()):
                if known is function:
                    yield module, attribute, known
