"""What FastAPI and pydantic-settings find out about a route or a setting, found out once.

Tests make services by the thousand. Most of the time that one took went into the signatures of its
routes and the annotations of its settings, which are the same for each. So what was found for a
method of a class at a path, and for a field of a class of settings, is kept, and is used with the
next service's own method; and so is what an environment says to a class of settings.

There is no setting for that. The names that are replaced here are the libraries' own:
tests/unit/test_known_routes.py fails where they mean nothing any more.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from operator import is_
from typing import Any, Final

from fastapi import routing
from pydantic_settings.sources.base import PydanticBaseEnvSettingsSource

ROUTES: Final = "_build_dependant_with_parameterless_dependencies"
FIELDS: Final = "_extract_field_info"
VALUES: Final = "__call__"
VALUES_COUNT_MAX: Final = 256
"""Of classes and environments whose settings are known at once."""


def find_out_once() -> None:
    """From here on, in this process."""
    setattr(routing, ROUTES, _remembering_routes(getattr(routing, ROUTES)))
    source = PydanticBaseEnvSettingsSource
    setattr(source, FIELDS, _remembering_fields(getattr(source, FIELDS)))
    setattr(source, VALUES, _remembering_values(getattr(source, VALUES)))


def _remembering_routes(find: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[Any, Any] = {}

    def found(*, path: str, call: Any, dependencies: Any) -> Any:
        function = getattr(call, "__func__", None)
        if function is None or dependencies:
            return find(path=path, call=call, dependencies=dependencies)
        if (path, function) not in known:
            known[path, function] = find(path=path, call=call, dependencies=dependencies)
        dependant, body_params, embedded = known[path, function]
        return replace(dependant, call=call), body_params, embedded

    return found


def _remembering_fields(find: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[Any, Any] = {}

    def found(self: Any, field: Any, name: str, config: Any = None) -> Any:
        if config is not None:
            return find(self, field, name, config)
        place = type(self), self.settings_cls, self.env_prefix, self.case_sensitive, name
        if place not in known or known[place][0] is not field:
            known[place] = field, find(self, field, name)
        return list(known[place][1])

    return found


def _remembering_values(find: Callable[..., Any]) -> Callable[..., Any]:
    """What the same variables say to the same fields."""
    known: dict[Any, tuple[list[Any], dict[str, Any]]] = {}

    def found(self: Any) -> dict[str, Any]:
        variables = frozenset(self.env_vars.items())
        place = type(self), self.settings_cls, self.env_prefix, self.case_sensitive, variables
        fields = list(self.settings_cls.model_fields.values())
        if place not in known or not all(map(is_, known[place][0], fields)):
            if len(known) >= VALUES_COUNT_MAX:
                known.clear()
            known[place] = fields, find(self)
        return deepcopy(known[place][1])

    return found
