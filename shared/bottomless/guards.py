"""The mark of a guard: what prevents a fault from breaking a promise, under the name it has in docs.

Each guard is a function or a method of its own, which decides or does one thing; the table "Guards"
of docs/guarantees.md says what happens without it, and names the test that shows it. That test puts
another function in the guard's place, which it finds by the name given here: so it does not know
where the guard lies, and nothing in the code that serves can take one away. The mark costs nothing
when the guard is called: a function is returned as it is. docs/decisions/0041.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

GUARDS: Final[dict[str, Callable[..., Any]]] = {}
"""All guards of the modules that are imported, by their names."""


def guard(name: str) -> Callable[[_F], _F]:
    """Mark a function as the guard of this name, and return it unchanged."""

    def mark(function: _F) -> _F:
        assert name not in GUARDS, f"two guards have one name: {name}"
        GUARDS[name] = function
        return function

    return mark
