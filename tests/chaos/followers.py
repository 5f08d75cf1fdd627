"""What lies on the disks of those that follow a stream: the same files as its owner's, byte for byte.

What is published may be gone from one disk and not yet from another, so it is left out.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from support.waiting import until

from chaos.deployment import ChaosDeployment
from chaos.ledger import Ledger
from chaos.lost_disks import node_id, record_of

SAME_SECONDS: Final = 240.0


def check_followers(deployment: ChaosDeployment, ledgers: Sequence[Ledger]) -> int:
    """Compare all files when all nodes are in sync; nobody appends or uploads. Returns the bytes of each.

    Raises:
        AssertionError: a follower has other files, or too few.
    """
    return sum(
        until(
            partial(_compare, deployment, one), SAME_SECONDS, f"followers of {one.name} to be alike"
        )
        for one in ledgers
    )


def _compare(deployment: ChaosDeployment, ledger: Ledger) -> int | None:
    record = record_of(deployment, ledger)
    names = {node_id(deployment, name): name for name in deployment.ingests}
    if record.home is None or set(record.in_sync) != set(names):
        return None
    own = _unpublished(_directory(deployment, names[record.home], ledger), record.published_next)
    for node, name in names.items():
        if node != record.home:
            directory = _directory(deployment, name, ledger)
            if any(_read(directory / one) != data for one, data in own.items()):
                return None
    return sum(len(data) for data in own.values())


def _directory(deployment: ChaosDeployment, name: str, ledger: Ledger) -> Path:
    return deployment.data_dir(name) / "ingest" / "streams" / ledger.stream_id


def _unpublished(directory: Path, published_next: int) -> dict[str, bytes]:
    """The segments from that on which holds the first record that is not in the store."""
    names = sorted(path.name for path in directory.glob("*.segment"))
    holding = [name for name in names if int(name.partition(".")[0]) <= published_next]
    first = holding[-1] if holding else ""
    return {name: (directory / name).read_bytes() for name in names if name >= first}


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
