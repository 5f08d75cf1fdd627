"""Decide which node has the queues of a tenant.

A node becomes the home of a tenant that has none, or by a takeover, from a node that will not come
back. Both are one term more than the last. Who looks at the bucket and finds a home there that
coordination does not know, brings that one back and founds no other: its node has the messages.
"""

from collections.abc import Sequence
from typing import NamedTuple

from bottomless.errors import Code, Fenced, NotFound, Unavailable
from bottomless.formats.queue_home import HomeObject
from bottomless.guards import guard
from bottomless.model.names import NodeId
from bottomless.model.queue_home import QueueHome


class HomeAsked(NamedTuple):
    """What a node asks for that would serve the queues of a tenant."""

    node_id: NodeId
    url: str
    """The url of its internal listener."""
    expect_home: NodeId | None = None
    """In a takeover, the node that loses them; None where nobody is to lose anything."""


def decide_home(
    tenant: str,
    before: QueueHome | None,
    asked: HomeAsked,
    *,
    last: HomeObject | None,
    home_held: bool,
    generation: int,
) -> QueueHome:
    """The home of a tenant after a node asked to be it; the same as before where it is another's.

    `last` is the newest one of which the bucket knows, `home_held` whether the node that a takeover
    names holds its lease.

    Raises:
        NotFound: there is nothing to take over.
        Fenced: `home-live`: the home is alive, or is not the node that was named.
    """
    if before is None and last is not None:
        before = brought_back(last, generation)
    if before is None:
        if asked.expect_home is not None:
            raise NotFound("the tenant has no queues", code=Code.NOT_FOUND)
        return QueueHome(tenant, 1, asked.node_id, asked.url, noted=False, generation=generation)
    if before.node_id == asked.node_id:
        # Also after a takeover whose answer was lost: it did arrive.
        return before._replace(url=asked.url)
    if asked.expect_home is None:
        return before
    require_gone(before, asked.expect_home, home_held=home_held)
    return QueueHome(
        tenant, before.term + 1, asked.node_id, asked.url, noted=False, generation=generation
    )


def brought_back(last: HomeObject, generation: int) -> QueueHome:
    """The home that the bucket shows, for a coordination that has lost it.

    It gets a term of its own: so an object that was on its way when coordination was lost finds its
    key taken, or counts.
    """
    return QueueHome(
        last.tenant, last.term + 1, last.node_id, None, noted=False, generation=generation
    )


@guard("the home's lease, at a takeover of queues")
def require_gone(home: QueueHome, expect_home: NodeId, *, home_held: bool) -> None:
    """Refuse to take queues from a node that may still answer for them.

    Coordination keeps a lease for its margin longer than the node itself believes in it.

    Raises:
        Fenced: `home-live`.
    """
    if home_held or home.node_id != expect_home:
        raise Fenced(
            "the home of the queues is alive, or it is not the one that expect_home names",
            code=Code.HOME_LIVE,
            facts={"home": home.node_id, "term": home.term},
            retry_after_seconds=5,
        )


def noted(before: QueueHome | None, home: QueueHome) -> QueueHome:
    """The home after the bucket says so; another one that came meanwhile stays as it is."""
    if before is None:
        raise home_changed()
    same = (before.term, before.node_id) == (home.term, home.node_id)
    return before._replace(noted=True) if same else before


@guard("the term of a home of queues")
def in_a_later_term(before: QueueHome | None, home: QueueHome) -> QueueHome:
    """The home with the next term, since the bucket says something else of this one."""
    if before is None:
        raise home_changed()
    same = (before.term, before.node_id) == (home.term, home.node_id)
    return before._replace(term=before.term + 1, noted=False) if same else before


def newest(objects: Sequence[HomeObject]) -> HomeObject | None:
    """The object of the highest term."""
    return max(objects, key=lambda one: one.term, default=None)


def home_changed() -> Unavailable:
    """Make the error for a home that others keep changing; the same again is right."""
    return Unavailable(
        "the home of the queues keeps changing",
        code=Code.COORDINATION_UNAVAILABLE,
        retry_after_seconds=1,
    )
