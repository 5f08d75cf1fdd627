"""What each request is: which operations of a scope allow it, on what, and whether it is audited.

The table of the whole public interface, by method and path; a test compares it with openapi/.
What is not in it is not served where identity is on. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from bottomless_server.runtime.base.scopes import Operation

OPEN: Final = ("/", "/livez", "/readyz", "/openapi.json", "/docs")
"""Paths that need no credential."""
_OPEN_BELOW: Final = "/docs/"
"""The parts of the page of documentation, which carry nothing of anybody."""

STREAM: Final = "s"
"""The part of a path that is the name of a stream."""


class Reach(Enum):
    """On what an operation must be allowed."""

    STREAM = auto()
    """On the stream in the path."""
    SOMEWHERE = auto()
    """On any stream: the answer holds only what the credential may see."""
    EVERYWHERE = auto()
    """On all streams of the tenant."""
    INSTALLATION = auto()
    """On all streams, for the tenant whose the installation is."""
    NOTHING = auto()
    """Every good credential will do."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How one method on one path is judged."""

    reach: Reach
    operations: tuple[Operation, ...] = ()
    """Any one of them is enough."""
    action: str | None = None
    """What the audit calls it, if it is always audited."""
    route_says: bool = False
    """The route says by `note_action` whether it is to be audited."""
    hides: bool = True
    """A principal that may do nothing with the stream in the path is told that there is none."""

    @property
    def audited(self) -> bool:
        return self.action is not None or self.route_says


class FoundRules(NamedTuple):
    """What a path is."""

    rules: dict[str, Rule]
    """By method."""
    parts: dict[str, str]
    """What stands in the places of its template."""


@dataclass(slots=True)
class _Node:
    """A part of paths."""

    rules: dict[str, Rule] = field(default_factory=dict)
    literal: dict[str, "_Node"] = field(default_factory=dict)
    named: tuple[str, "_Node"] | None = None


def is_open(path: str) -> bool:
    """Whether nobody is asked who they are here."""
    return path in OPEN or path.startswith(_OPEN_BELOW)


def find_rules(path: str) -> FoundRules | None:
    """What is known of a path, decoded as the services see it; None if nothing is served there."""
    node, parts = _ROOT, {}
    for part in path.split("/"):
        following = node.literal.get(part)
        if following is None:
            if node.named is None or not part:
                return None
            name, following = node.named
            parts[name] = part
        node = following
    return FoundRules(node.rules, parts) if node.rules else None


def templates() -> list[tuple[str, str]]:
    """Every method and path of the table, for the comparison with the contract."""
    return [(method, path) for methods, path, _ in _TABLE for method in methods.split()]


_READ, _APPEND, _CONSUME = Operation.READ, Operation.APPEND, Operation.CONSUME
_DESCRIBE, _MANAGE, _ADMIN = Operation.DESCRIBE, Operation.MANAGE, Operation.ADMIN


def _on_stream(*operations: Operation, action: str | None = None) -> Rule:
    return Rule(Reach.STREAM, operations, action)


_S: Final = "/v1/streams/{s}"
_TABLE: Final[Sequence[tuple[str, str, Rule]]] = (
    ("POST", _S + "/records", _on_stream(_APPEND)),
    ("GET", _S + "/records", _on_stream(_READ)),
    ("GET", _S + "/records/{offset}", _on_stream(_READ)),
    ("GET", _S + "/offsets", _on_stream(_READ, _DESCRIBE)),
    ("GET", _S + "/offsets/resolve", _on_stream(_READ, _DESCRIBE)),
    ("GET", _S + "/fragments", _on_stream(_READ)),
    ("GET HEAD", _S + "/fragments/{fragment_id}", _on_stream(_READ)),
    ("POST", _S + "/staged", _on_stream(_APPEND)),
    ("GET", _S + "/producers", _on_stream(_DESCRIBE)),
    # A producer looks after itself: it asks where it was, and fences its old self.
    ("GET", _S + "/producers/{p}", _on_stream(_APPEND, _DESCRIBE)),
    ("POST", _S + "/producers/{p}/epoch", _on_stream(_APPEND)),
    ("DELETE", _S + "/producers/{p}", _on_stream(_ADMIN, action="producer.forget")),
    ("GET", _S + "/consumers", _on_stream(_CONSUME, _DESCRIBE)),
    ("GET", _S + "/consumers/{c}", _on_stream(_CONSUME, _DESCRIBE)),
    ("GET", _S + "/consumers/{c}/offset", _on_stream(_CONSUME, _DESCRIBE)),
    # Audited only where the offset goes back.
    ("PUT", _S + "/consumers/{c}/offset", Rule(Reach.STREAM, (_CONSUME,), route_says=True)),
    ("DELETE", _S + "/consumers/{c}/offset", _on_stream(_CONSUME, action="offset.forget")),
    ("GET", "/v1/streams", Rule(Reach.SOMEWHERE, (_DESCRIBE,))),
    ("GET HEAD", _S, _on_stream(_DESCRIBE)),
    # To create needs no stream, so that it is forbidden says nothing of whether there is one.
    ("PUT", _S, Rule(Reach.STREAM, (_MANAGE,), "stream.create", hides=False)),
    ("PATCH", _S, _on_stream(_MANAGE, action="stream.update")),
    ("DELETE", _S, _on_stream(Operation.DELETE, action="stream.delete")),
    ("POST", _S + "/retention/preview", _on_stream(_MANAGE)),
    ("POST", _S + "/retention/evaluate", _on_stream(_MANAGE, action="retention.evaluate")),
    ("POST", _S + "/trim", _on_stream(_MANAGE, action="stream.trim")),
    ("POST", _S + "/leases", _on_stream(_MANAGE)),
    ("PUT DELETE", _S + "/leases/{lease_id}", _on_stream(_MANAGE)),
    ("GET", _S + "/manifest", _on_stream(_DESCRIBE)),
    ("POST", _S + "/manifest/verify", _on_stream(_MANAGE, action="manifest.verify")),
    # Ids of operations cannot be guessed, and are of the tenant who asks.
    (
        "GET",
        "/v1/operations/{operation_id}",
        Rule(Reach.SOMEWHERE, (_DESCRIBE, _MANAGE, Operation.DELETE, _ADMIN)),
    ),
    (
        "POST",
        "/v1/admin/streams/{s}/takeover",
        _on_stream(_ADMIN, action="stream.takeover"),
    ),
    ("POST", "/v1/admin/streams/{s}/gap", _on_stream(_ADMIN, action="stream.gap")),
    ("POST", "/v1/admin/gc", Rule(Reach.EVERYWHERE, (_ADMIN,), "gc")),
    ("POST", "/v1/admin/rebuild", Rule(Reach.INSTALLATION, (_ADMIN,), "rebuild")),
    ("GET", "/v1/keys", Rule(Reach.EVERYWHERE, (_ADMIN,))),
    ("POST", "/v1/keys", Rule(Reach.EVERYWHERE, (_ADMIN,), "key.create")),
    ("GET", "/v1/keys/{key_id}", Rule(Reach.EVERYWHERE, (_ADMIN,))),
    ("DELETE", "/v1/keys/{key_id}", Rule(Reach.EVERYWHERE, (_ADMIN,), "key.revoke")),
    ("POST", "/v1/keys/{key_id}/rotate", Rule(Reach.EVERYWHERE, (_ADMIN,), "key.rotate")),
    ("GET", "/v1/limits", Rule(Reach.NOTHING)),
    ("GET", "/v1/version", Rule(Reach.NOTHING)),
    ("GET", "/v1/whoami", Rule(Reach.NOTHING)),
)


def _grown() -> _Node:
    root = _Node()
    for methods, path, rule in _TABLE:
        node = root
        for part in path.split("/"):
            if not part.startswith("{"):
                node = node.literal.setdefault(part, _Node())
                continue
            name = part[1:-1]
            if node.named is None:
                node.named = (name, _Node())
            assert node.named[0] == name, "one place of a path has one name"
            node = node.named[1]
        node.rules |= dict.fromkeys(methods.split(), rule)
    return root


_ROOT: Final = _grown()
