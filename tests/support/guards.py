"""Take a guard of the product away: another function is put in its place, wherever it is known.

Guards are found by their names (`bottomless/guards.py`), so a test does not know where one lies.
"""

import sys
from collections.abc import Callable, Iterator
from inspect import Parameter, signature
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
    _require_callable_as(GUARDS[name], variant)
    return [
        (owner, attribute, property(variant) if isinstance(known, property) else variant)
        for owner, attribute, known in places
    ]


def _require_callable_as(guard: Callable[..., Any], variant: Callable[..., Any]) -> None:
    """Refuse a variant that cannot be called as the guard is: the product would take the TypeError for a
    bug of its own, and a run that fails for that would prove nothing of the guard."""
    needed = [one for one in signature(guard).parameters.values() if one.default is Parameter.empty]
    by_place = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    named = {one.name: one for one in needed if one.kind is Parameter.KEYWORD_ONLY}
    signature(variant).bind(*(one for one in needed if one.kind in by_place), **named)


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
