"""Appends, conditional and repeated appends and reads of a stream that three nodes hold seem to happen
one after the other: also where its owner is killed, sleeps through its lease, or is changed by hand.

The seed comes from BOTTOMLESS_TEST_SEED and the count of rounds from BOTTOMLESS_TEST_ROUNDS.
"""

from functools import partial
from pathlib import Path

import pytest
from support.contract import QUICK
from support.fault_proxy import running_fault_proxy
from support.faults import Fault, Rule
from support.replicated import NODES, ReplicatedStream, ThreeServers, three_servers
from support.waiting import until

from linearizability.checker import check
from linearizability.recording import Recording, record
from linearizability.test_linearizability import APPENDS, LOST_STRICT, OPERATIONS, ROUNDS, SEED

SETTINGS = {"BOTTOMLESS_UPLOADER_RETRY_MAX_SECONDS": "0.5"}
LOST = (Rule(Fault.LOSE_REPLY, "POST", APPENDS, after=3, chance=0.1),)


@pytest.mark.timeout(300 + 120 * ROUNDS)
def test_histories_of_replicas_over_failovers_and_moves_are_linearizable(tmp_path: Path) -> None:
    print(f"BOTTOMLESS_TEST_SEED={SEED} BOTTOMLESS_TEST_ROUNDS={ROUNDS}")
    with (
        three_servers(tmp_path, SETTINGS) as nodes,
        running_fault_proxy(nodes["first"].url, SEED) as first,
        running_fault_proxy(nodes["second"].url, SEED + 1) as second,
    ):
        for number in range(ROUNDS):
            # What is uploaded is read too, in every second round.
            fragment = QUICK["fragment"] if number % 2 else None
            stream = ReplicatedStream(nodes, f"round-{number}", fragment=fragment)
            ways = (first.endpoint, second.endpoint, nodes["third"].url)
            recording = Recording(stream.name, *ways, SEED + number)
            with first.disturbing(*LOST), second.disturbing(*LOST_STRICT):
                record(recording, OPERATIONS, partial(change_owners, nodes, stream, recording))
            verdict = check(recording.events)
            assert verdict.order is not None, f"seed {SEED}, round {number}: {verdict}"
            assert len({event.client for event in recording.events}) == 6
            assert recording.replayed_count


def change_owners(nodes: ThreeServers, stream: ReplicatedStream, recording: Recording) -> None:
    """Kill the owner, give the stream to the node that came back, and have that one sleep."""

    def has(enough: int) -> bool:
        return recording.size >= enough

    until(partial(has, OPERATIONS), what="the clients to be at work")
    stream.until_in_sync(*NODES)
    killed = stream.owner
    nodes[killed].kill()
    stream.until_owned(*stream.others(killed))
    nodes[killed].start()

    stream.until_in_sync(*NODES)
    stream.move(killed)

    stream.until_in_sync(*NODES)
    sleeper = stream.owner
    with nodes.paused(sleeper):
        stream.until_owned(*stream.others(sleeper))
