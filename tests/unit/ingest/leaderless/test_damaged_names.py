"""What is known of a producer is damaged: its own appends are refused, and nobody else's."""

from bottomless.errors import Corrupt, Outcome
from bottomless_server.coordination.base import Changes
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.leaderless.decided import KnownName
from bottomless_server.stores.tail_keys import known_key
from unit.ingest.leaderless.harness import a_house
from unit.ingest.leaderless.making import IDS, an_append, of_producer


def test_what_shares_a_flush_with_a_damaged_producer_is_stored() -> None:
    stores, writer = a_house()
    assert isinstance(writer.append(0, an_append(b"a", conditions=of_producer("p"))), Appended)
    damaged = {known_key(IDS[0], KnownName("p", is_producer=True)): b"damaged"}
    stores.coordination.write(Changes(damaged))

    of_it, of_another, plain = writer.told(
        writer.put(0, an_append(b"b", conditions=of_producer("p", 1))),
        writer.put(0, an_append(b"c", conditions=of_producer("q"))),
        writer.put(0, an_append(b"d")),
    )

    assert isinstance(of_it, Corrupt)
    assert of_it.outcome is Outcome.NONE
    assert isinstance(of_another, Appended)
    assert isinstance(plain, Appended)
    assert stores.values(0) == [b"a", b"c", b"d"]
