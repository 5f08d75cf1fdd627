"""What it would be to do without guards of super streams."""

from typing import Any

from bottomless_server.ingest.producers.super_requests import Begun, Raise


def going_on(*_: Any) -> Begun:
    """Every request goes on, whatever is whole."""
    return Begun.GO_ON


def raised_at_one_partition(_: int, coordinating: int) -> list[Raise]:
    """An epoch is raised where requests are coordinated, and nowhere else."""
    return [Raise(coordinating, coordinates=True)]


def by_the_newest(*given: Any) -> int:
    """Every request goes by the newest layout."""
    newest: int = given[-1]
    return newest


async def all_told(*_: Any) -> bool:
    """A growth waits for no owner."""
    return True
