"""What FastAPI and pydantic-settings find out about a route or a setting, found out once.

Tests make services by the thousand. Most of the time that one took went into the signatures of its
routes and the annotations of its settings, which are the same for each. So what was found for a
method of a class at a path, with all that its decorator says, is kept, and is used with the next
service's own method; and so is what an environment says to a class of settings.

There is no setting for that. The names that are replaced here are the libraries' own:
tests/unit/test_known_routes.py fails where they mean nothing any more.
"""

import os
from collections.abc import Callable, Hashable
from copy import copy, deepcopy
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any, Final

from fastapi import routing
from fastapi.datastructures import DefaultPlaceholder
from fastapi.utils import generate_unique_id
from pydantic import BaseModel
from pydantic_settings import BaseSettings

ROUTES: Final = "_populate_api_route_state"
SOURCES: Final = "_settings_init_sources"
VALUES: Final = "_settings_build_values"
OF_A_SERVICE: Final = "dependency_overrides_provider"
"""The option of a route that is the application itself: nothing that is found depends on it."""
OF_A_TEST: Final = "PYTEST_CURRENT_TEST"
"""The one variable that no two tests have alike."""
VALUES_COUNT_MAX: Final = 256
"""Of classes and environments whose settings are known at once."""
_PLAIN: Final = (type(None), bool, int, str, type)
_MOST: Final = frozenset({type(None), bool, int, str})
"""What nearly all values in options are, which are made thousands of times: these are asked for first."""
_CONTAINERS: Final = (list, dict, set)


def find_out_once() -> None:
    """From here on, in this process."""
    setattr(routing, ROUTES, _remembering_routes(getattr(routing, ROUTES)))
    setattr(BaseSettings, "__init__", _remembering_values(BaseSettings.__init__))  # noqa: B010


def _remembering_routes(find: Callable[..., None]) -> Callable[..., None]:
    known: dict[Hashable, tuple[dict[str, Any], dict[str, Any]]] = {}

    def found(route: Any, path: str, endpoint: Any, **options: Any) -> None:
        app = options.pop(OF_A_SERVICE, None)
        try:
            place = type(route), path, _function(endpoint), _key(options)
        except TypeError:
            find(route, path, endpoint, **options, **{OF_A_SERVICE: app})
            return
        if place not in known:
            find(route, path, endpoint, **options)
            members = dict(vars(route))
            members["dependant"] = replace(route.dependant, call=None)
            del members["endpoint"], members[OF_A_SERVICE]
            own = {name: one for name, one in members.items() if isinstance(one, _CONTAINERS)}
            known[place] = members, own
        members, own = known[place]
        vars(route).update(members)
        vars(route).update({name: copy(value) for name, value in own.items()})
        route.dependant = replace(route.dependant, call=endpoint)
        vars(route).update({"endpoint": endpoint, OF_A_SERVICE: app})

    return found


def _function(endpoint: Any) -> Hashable:
    """What is looked at of a method, or of a function that is made anew within another one.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(endpoint, MethodType):
        return endpoint.__func__
    if not isinstance(endpoint, FunctionType) or endpoint.__kwdefaults__:
        raise TypeError(endpoint)
    return endpoint.__code__, endpoint.__defaults__, *endpoint.__annotations__.items()


def _key(value: Any) -> Hashable:
    """What tells this option from others.

    Raises:
        TypeError: it may mean another thing the next time.
    """
    kind = type(value)
    if kind in _MOST:
        return kind, value
    if kind is DefaultPlaceholder:
        return "default", _key(value.value)
    if isinstance(value, (list, tuple, set)):
        return tuple([_key(one) for one in value])
    if isinstance(value, dict):
        return tuple([(_key(name), _key(one)) for name, one in value.items()])
    if isinstance(value, _PLAIN) or value is generate_unique_id:
        return type(value), value
    raise TypeError(value)


def _remembering_values(make: Callable[..., None]) -> Callable[..., None]:
    """What the same variables say to the same class; what is said by name comes before that."""
    known: dict[Hashable, dict[str, Any]] = {}

    def made(self: Any, *arguments: Any, **values: Any) -> None:
        kind = type(self)
        nested = any(isinstance(value, dict) for value in values.values())
        if arguments or nested or not kind.model_fields.keys() >= values.keys():
            make(self, *arguments, **values)
            return
        variables = frozenset(pair for pair in os.environ.items() if pair[0] != OF_A_TEST)
        if (kind, variables) not in known:
            if len(known) >= VALUES_COUNT_MAX:
                known.clear()
            known[kind, variables] = getattr(kind, VALUES)(*getattr(kind, SOURCES)())
        BaseModel.__init__(self, **{**deepcopy(known[kind, variables]), **values})

    return made
