"""The lane: how a request is answered that can be decided from what is known when its head is here.

A request that waits for nobody needs no task, no ASGI messages and no turn of its own on its
connection. The listener asks the lane at the end of a head; what the lane takes is answered
through a callback, and requests that come after it are read meanwhile, so that all that one read
of the socket brings is stored together. Whatever the lane does not take, or finds to be refused
before anything of it is stored, goes the usual way, with its bytes: there is one place that makes
problems. Decision 47 lists what each layer around an application does, and how the lane keeps it.

Two implement `Lane`: the layers of a process (`process/public_lane.py`), around that of a service.
"""

from collections.abc import Callable, Hashable
from typing import Protocol

from starlette.types import Scope

from bottomless_server.runtime.http.whole_answer import WholeAnswer

Answering = Callable[[WholeAnswer], None]


class LaneRequest(Protocol):
    """One request that the lane has taken. Exactly one of its ends comes: its answer, `leave` or
    `lose`."""

    def receive(self, size: int) -> bool:
        """Note so many bytes more of the body; False if there is no room for them now."""
        ...

    @property
    def turn(self) -> Hashable:
        """What it has in common with requests that are done in the order in which they are taken.

        Of those under way on one connection all have the same; another one waits for them.
        """
        ...

    def take(self, body: bytes, answer: Answering) -> bool:
        """Do what is asked with the whole body; `answer` is called once, later.

        False if nothing was done, and nothing will be: it goes the usual way.
        """
        ...

    def leave(self) -> None:
        """Give back all that is held: the request goes the usual way."""
        ...

    def lose(self) -> None:
        """Give back all that is held: the client left before the whole body was here."""
        ...


class Lane(Protocol):
    """Decides which requests need no wait."""

    def begin(self, scope: Scope, size: int) -> LaneRequest | None:
        """Take a request whose body has `size` bytes; None if it is for the usual way.

        Nothing of the scope is changed that the usual way would find otherwise.
        """
        ...
