"""While the store is compared with the bucket nobody waits for longer than a commit may take."""

import asyncio

from support.wire import Passage

from bottomless.errors import Code, Outcome, StoreError
from bottomless_server.ingest.producers.producers import Appended
from unit.ingest.leaderless.harness import BOUNDS, a_house, until
from unit.ingest.leaderless.making import an_append


def test_what_waits_while_the_bucket_is_slow_is_refused_in_time() -> None:
    stores, writer = a_house()
    assert isinstance(writer.append(0, an_append(b"a")), Appended)
    until(stores, lambda: bool(stores.notes()))
    stores.coordination.connected_count += 1
    stores.trouble.next["drive.list"] = [Passage(there_seconds=300.0)]
    begun = stores.loop.now

    said = writer.append(0, an_append(b"b"))

    assert isinstance(said, StoreError)
    assert (said.code, said.outcome) == (Code.COORDINATION_UNAVAILABLE, Outcome.NONE)
    assert stores.loop.now - begun < BOUNDS.put_seconds + BOUNDS.commit_seconds
    stores.do(asyncio.sleep(300))
    assert isinstance(writer.append(0, an_append(b"c")), Appended)
    assert stores.values(0) == [b"a", b"c"]
