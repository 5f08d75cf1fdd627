"""The table of the public interface: who answers a path, who may ask for it, how it is counted.

Made of `contract/endpoints.json`, which `./dev contract` compiles from openapi/*.yaml. Paths are
found part by part, in the decoded form that services see; a word that stands in the table is
preferred to a name. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from bottomless_server.core.scopes import Operation

STREAM: Final = "s"
"""The part of a path that is the name of a stream."""
QUEUE: Final = "q"
"""The part of a path that is the name of a queue."""


class Reach(StrEnum):
    """On what an operation must be allowed."""

    OPEN = "open"
    """On nothing: no credential is asked for."""
    ANY_CREDENTIAL = "any-credential"
    """On nothing: every good credential will do."""
    STREAM = "stream"
    """On the stream in the path."""
    QUEUE = "queue"
    """On the queue in the path."""
    SOMEWHERE = "somewhere"
    """On any stream or queue: the answer holds only what the credential may see."""
    EVERYWHERE = "everywhere"
    """On all streams of the tenant."""
    INSTALLATION = "installation"
    """On all streams, for the tenant whose the installation is."""


class Rate(StrEnum):
    """What limits of rates count of a request."""

    NONE = "none"
    REQUESTS = "requests"
    """The request."""
    APPEND = "append"
    """The request, and the bytes of its body."""
    BY_ROUTE = "by-route"
    """What the request stands for, which its route counts: `count_by_route`."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method on one path."""

    operation_id: str
    service: str | None
    """The service that answers; None where each one does."""
    reach: Reach
    operations: tuple[Operation, ...] = ()
    """Any one of them is enough."""
    hides: bool = True
    """A principal that may do nothing with the stream or queue in the path is told that there is none."""
    action: str | None = None
    """What the audit calls it, if it is always audited."""
    route_says: bool = False
    """The route says by `note_action` whether it is to be audited."""
    rate: Rate = Rate.NONE

    @property
    def audited(self) -> bool:
        return self.action is not None or self.route_says


class Place:
    """A part of paths, after the parts that lead to it."""

    __slots__ = ("endpoints", "literal", "named", "nowhere", "services", "services_of_others")

    def __init__(self) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        """The endpoints by method."""
        self.literal: dict[str, Place] = {}
        self.named: tuple[str, Place] | None = None
        self.services: dict[str, tuple[str, ...]] = {}
        """The services to ask, by method, best first."""
        self.services_of_others: tuple[str, ...] = ()
        """The services to ask by a method that none of them serves here."""
        self.nowhere: FoundPath
        """What a path is that leads on from here to nothing."""

    def following(self) -> dict[str, "Place"]:
        """What follows, by its part; a name stands in braces."""
        named = {} if self.named is None else {f"{{{self.named[0]}}}": self.named[1]}
        return {**self.literal, **named}


class FoundPath(NamedTuple):
    """What a path is."""

    endpoints: Mapping[str, Endpoint]
    """The endpoints by method; empty where nothing is served."""
    parts: Mapping[str, str]
    """What stands in the places of its template."""
    place: Place

    def services(self, method: str) -> tuple[str, ...]:
        """The services to ask, best first: the first may answer 405 where there is another."""
        place = self.place
        return place.services.get(method, place.services_of_others)


class EndpointTable:
    """All endpoints, by their paths."""

    def __init__(self, compiled: Mapping[str, Any]) -> None:
        """Build the table of what `contract/endpoints.json` holds.

        Raises:
            ValueError: one place of a path has two names.
        """
        self.root = Place()
        self.default: str = compiled["default"]["service"]
        """The service that is asked for paths below `below` which are in no branch of another."""
        self.below: str = compiled["default"]["below"]
        for each in compiled["endpoints"]:
            self._add(each["path"], each["method"], _endpoint(each))
        self._settle(self.root.literal[""], "")
        self.root.nowhere = FoundPath({}, {}, Place())
        open_paths = [e["path"] for e in compiled["endpoints"] if e["on"] == Reach.OPEN]
        pages = compiled["pages"]
        self._open = frozenset([*open_paths, *(page["path"] for page in pages)])
        self._open_below = tuple(f"{page['path']}/" for page in pages if page["below"])

    def find(self, path: str) -> FoundPath:
        """What is known of a path, decoded as the services see it."""
        place = self.root
        parts: dict[str, str] = {}
        for part in path.split("/"):
            following = place.literal.get(part)
            if following is None:
                if place.named is None or not part:
                    return place.nowhere
                name, following = place.named
                parts[name] = part
            place = following
        return FoundPath(place.endpoints, parts, place)

    def is_open(self, path: str) -> bool:
        """Whether nobody is asked who they are here."""
        return path in self._open or path.startswith(self._open_below)

    def _add(self, path: str, method: str, endpoint: Endpoint) -> None:
        place = self.root
        for part in path.split("/"):
            if not part.startswith("{"):
                place = place.literal.setdefault(part, Place())
                continue
            name = part[1:-1]
            if place.named is None:
                place.named = (name, Place())
            if place.named[0] != name:
                raise ValueError(f"{path}: the place of {{{name}}} is called {place.named[0]}")
            place = place.named[1]
        place.endpoints[method] = endpoint

    def _settle(self, place: Place, path: str) -> set[str]:
        """Say of a place and of all below it who is asked; returns the services that serve there."""
        own = sorted({each.service for each in place.endpoints.values() if each.service})
        serving = set(own)
        for part, following in place.following().items():
            serving |= self._settle(following, f"{path}/{part}")
        below: tuple[str, ...] = ()
        if f"{path}/".startswith(self.below):
            # A service that has all of a branch also says of its paths that there is nothing.
            below = tuple(serving) if len(serving) == 1 else (self.default,)
        beyond = Place()
        beyond.services_of_others = below
        place.nowhere = FoundPath({}, {}, beyond)
        place.services_of_others = tuple(own) or (below if path.startswith(self.below) else ())
        for method, endpoint in place.endpoints.items():
            if endpoint.service is not None:
                others = (name for name in own if name != endpoint.service)
                place.services[method] = (endpoint.service, *others)
        if "GET" in place.services:
            place.services.setdefault("HEAD", place.services["GET"])
        return serving


def _endpoint(compiled: Mapping[str, Any]) -> Endpoint:
    audit = compiled["audit"]
    return Endpoint(
        compiled["id"],
        compiled["service"],
        Reach(compiled["on"]),
        tuple(map(Operation, compiled["operations"])),
        compiled["hides"],
        None if audit in (None, "by-route") else audit,
        audit == "by-route",
        Rate(compiled["rate"]),
    )
