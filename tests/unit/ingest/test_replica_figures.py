"""What is measured of replicas: who is in sync, what others lack, who was let go and counted in."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bottomless.model.names import NodeId
from bottomless_server.ingest.replicas.figures import InSync, ReplicaFigures, lag_of, seen_of
from bottomless_server.node.core.replica_waits import Holders
from bottomless_server.protocol.replica import Place
from unit.ingest.harness import IngestHarness
from unit.ingest.replica_logs import OwnerLog
from unit.ingest.replica_services import Node, ThreeServices

A, B, C = (NodeId(letter * 32) for letter in "abc")


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[ThreeServices]:
    # No busy machine takes so long that a caller is told of an unknown outcome.
    made = await ThreeServices(tmp_path, ingest_replica_commit_ms=600_000).start()
    yield made
    await made.aclose()


def samples(harness: IngestHarness) -> dict[tuple[str, ...], float]:
    """What a node shows, by the name of each number and the values of its labels."""
    return {
        (sample.name.removeprefix("bottomless_ingest_"), *sample.labels.values()): sample.value
        for metric in harness.service.metrics()
        for sample in metric.samples
    }


def shown(node: Node, *name: str) -> float:
    return samples(node.harness)[name]


async def until_shown(three: ThreeServices, node: Node, value: float, *name: str) -> None:
    """Return when a node shows a number: it hears of its own changes a moment after they are written."""

    async def is_shown() -> bool:
        return samples(node.harness).get(name) == value

    await three.until(is_shown)


async def test_a_node_that_is_away_is_seen_to_lack_what_was_written_since(
    three: ThreeServices,
) -> None:
    owner, _, c = three.nodes
    assert await three.append(owner, "0") == 0
    await three.until_all_in_sync()
    await until_shown(three, owner, 1, "replica_in_sync", "all")
    await until_shown(three, owner, 0, "replica_lag_bytes", c.node_id)
    assert shown(c, "replica_followed_streams") == 1
    assert shown(c, "replica_in_sync", "all") == 0

    c.address.gone = True
    assert await three.append(owner, "1") == 1
    await until_shown(three, owner, 1, "replica_in_sync", "minimum")
    assert shown(owner, "replica_lag_bytes", c.node_id) > 0
    assert shown(owner, "replica_evictions_total") >= 1
    assert shown(owner, "replica_round_wait_seconds_count") >= 2

    c.address.gone = False
    await until_shown(three, owner, 1, "replica_in_sync", "all")
    assert shown(owner, "replica_admissions_total") >= 1
    report = await owner.harness.service.report()
    assert report["node"] == owner.node_id
    assert report["replicas"] == {"followed": 0, "all": 1, "fewer": 0, "minimum": 0, "too-few": 0}


async def test_a_failover_is_counted_and_a_transfer_is_another_number(
    three: ThreeServices,
) -> None:
    owner, b, c = three.nodes
    assert await three.append(owner, "0") == 0
    await three.until_all_in_sync()
    await owner.harness.service.replicas.transfers.give_all()
    heir = await three.until_owned_by(b, c)
    assert await three.append(heir, "1") == 1
    assert shown(owner, "replica_transfers_total") == 1
    assert shown(heir, "failovers_total") == 0
    await three.until_all_in_sync()

    await three.cut_off(heir)
    last = await three.until_owned_by(owner, c if heir is b else b)
    await until_shown(three, last, 1, "failovers_total")


@pytest.mark.parametrize(
    ("in_sync", "least", "wanted", "seen"),
    [
        ((A, B, C), 2, 3, InSync.ALL),
        ((A, B), 2, 2, InSync.ALL),
        ((A, B), 1, 3, InSync.FEWER),
        ((A, B), 2, 3, InSync.MINIMUM),
        ((A,), 2, 3, InSync.TOO_FEW),
    ],
)
def test_how_many_have_everything(
    in_sync: tuple[NodeId, ...], least: int, wanted: int, seen: InSync
) -> None:
    holders = Holders(A, (A, B, C), in_sync, least)
    assert seen_of(OwnerLog().log, holders, wanted, {}, is_held=False).in_sync is seen


def test_a_node_of_which_nobody_knows_is_not_counted_in() -> None:
    holders = Holders(A, (A, B, C), (A, B, C), 2, doubted=frozenset({B}))
    assert seen_of(OwnerLog().log, holders, 3, {}, is_held=True) == (
        InSync.MINIMUM,
        {B: 0, C: 0},
        True,
    )


def test_a_log_lacks_what_comes_after_its_end_in_this_segment_and_in_later_ones() -> None:
    owner = OwnerLog()
    owner.append(*[600] * 6)
    first, second, *others = owner.log.segments
    rest = sum(segment.size for segment in others)
    assert others
    assert lag_of(owner.log, None) == first.size + second.size + rest
    assert lag_of(owner.log, Place(others[-1].first_offset, others[-1].size)) == 0
    assert lag_of(owner.log, Place(second.first_offset, 30)) == second.size - 30 + rest
    assert lag_of(owner.log, Place(first.first_offset, first.size)) == second.size + rest


def test_no_more_than_a_hundred_nodes_are_shown() -> None:
    class Many:
        def seen(self) -> object:
            lags = {NodeId(f"{number:032x}"): number for number in range(150)}
            return type("Seen", (), {"in_sync": InSync.ALL, "lags": lags, "is_held": False})

    figures = ReplicaFigures()
    figures.watched.add(Many())  # type: ignore[arg-type]
    (family,) = [one for one in figures.metrics(0, is_full=True) if one.name.endswith("lag_bytes")]
    assert sorted(sample.value for sample in family.samples) == list(range(50, 150))
