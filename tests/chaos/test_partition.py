"""Two ingest nodes on machines of their own, whose network is cut under load.

A cut network is not a killed process: whoever is cut off lives, hears its clients, and may
believe whatever it believed before. Runs where network namespaces can be made, as root.
"""

import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final

import httpx
import pytest
from support.namespaces import Network, refusal, running_network
from support.numbered_records import record, value_of
from support.processes import Process
from support.s3 import S3Server
from support.waiting import until

from chaos.checker import check
from chaos.deployment import INGESTS, MANIFEST_OF, ChaosDeployment, chaos_deployment
from chaos.ledger import Ledger
from chaos.load import Load

REFUSAL: Final = refusal()
pytestmark = [
    pytest.mark.skipif(REFUSAL is not None, reason=str(REFUSAL)),
    pytest.mark.timeout(1_200),
]

INTERNAL_PORT: Final = 9_000
SECRET: Final = "0123456789abcdefghijklmnopqrstuv"
ANSWER_SECONDS: Final = 240.0
"""Far longer than a node asks others before it answers: on a machine that has too much to do a
late answer is no fault."""
RECOVER_SECONDS: Final = 240.0
"""As in chaos/run.py."""
PROBER: Final = 9
"""A producer that asks one node and no other."""
SLOW: Final = {"fragment": {"target_bytes": 67_108_864, "max_age_ms": 86_400_000}}
QUICK: Final = {"fragment": {"target_bytes": 65_536, "max_age_ms": 1_000}}


class NetworkDeployment(ChaosDeployment):
    """One whose ingest nodes have a namespace each; all others are where the test is."""

    def __init__(self, network: Network, *given: Any) -> None:
        self.network = network
        # Nodes are reached over the network here, so they ask for a secret.
        settings = {**given[-1], "BOTTOMLESS_INTERNAL_SECRET": SECRET}
        super().__init__(*(*given[:-1], settings))

    def _process(self, name: str, port: int) -> Process:
        if name not in INGESTS:
            return super()._process(name, port)
        node = self.network.nodes[INGESTS.index(name)]
        here = self.network.address
        to_valkey = self.links.open(f"{name}>valkey", (here, 0), self._valkey_socket())
        manifest = MANIFEST_OF[name]
        to_manifest = self.links.open(f"{name}>{manifest}", (here, 0), self._socket(manifest))
        own = {
            "BOTTOMLESS_DATA_DIR": str(self.data_dir(name)),
            "BOTTOMLESS_HOST": node.client_address,
            "BOTTOMLESS_ALLOW_UNAUTHENTICATED": "1",
            "BOTTOMLESS_COORDINATION_URL": f"redis://{here}:{to_valkey.address[1]}/0",
            "BOTTOMLESS_MANIFEST_URL": f"http://{here}:{to_manifest.address[1]}",
            "BOTTOMLESS_INGEST_INTERNAL_LISTEN": f"{node.address}:{INTERNAL_PORT}",
            "BOTTOMLESS_INGEST_URL": f"http://{node.address}:{INTERNAL_PORT}",
        }
        log = self.directory / f"{name}.log"
        return Process(["ingest"], log, {**self._settings, **own}, port, prefix=node.prefix)

    def nodes(self) -> list[str]:
        """Ingest nodes whose lease is live, by their addresses."""
        with self.internal("manifest") as manifest:
            found: list[dict[str, str]] = manifest.get("/internal/v1/nodes").json()["nodes"]
        return [one["url"] for one in found]

    def wait_alone(self, name: str) -> None:
        """Until the lease of this node is over for everybody else."""
        address = self.network.nodes[INGESTS.index(name)].address
        until(
            lambda: not any(address in url for url in self.nodes()),
            RECOVER_SECONDS,
            "the lease to be over",
        )


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory, seaweed: S3Server
) -> Iterator[NetworkDeployment]:
    directory = tmp_path_factory.mktemp("partition")
    with running_network(len(INGESTS)) as network:
        make = partial(NetworkDeployment, network)
        with chaos_deployment(directory, seaweed, make=make) as running:
            assert isinstance(running, NetworkDeployment)
            yield running
            network.join()


def new_ledger(deployment: NetworkDeployment, number: int, owner: str) -> Ledger:
    """A stream whose first append goes to this node, so that it is its owner."""
    strict = (10 * number, 10 * number + 1)
    ledger = Ledger(f"parted-{number}", strict, plain=(10 * number + 2,))
    made = deployment.retried(lambda client: client.put(ledger.path, json=QUICK))
    ledger.stream_id = made["stream_id"]
    until(lambda: probe(deployment, ledger, owner), RECOVER_SECONDS, "the first append")
    return ledger


def probe(deployment: NetworkDeployment, ledger: Ledger, name: str) -> bool:
    """Append one record at one node, by the way of its clients; whether it was acknowledged."""
    who = ledger.strict[0] + PROBER
    code = record(who, ledger.sent[who])
    ledger.sent[who] += 1
    body = {"records": [{"value": value_of(code)}]}
    try:
        with httpx.Client(base_url=deployment[name].url, timeout=ANSWER_SECONDS) as client:
            answer = client.post(f"{ledger.path}/records", json=body)
    except httpx.TransportError:
        # What was sent when the network went may be stored, or not.
        return False
    if answer.status_code == httpx.codes.OK:
        ledger.note_acknowledged(answer.json()["first_offset"], [code])
        return True
    assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE, answer.text
    if answer.json()["outcome"] == "none":
        ledger.note_refused([code])
    return False


def wait_for_progress(ledgers: list[Ledger], count: int = 20) -> None:
    wanted = [len(one.acknowledged) + count for one in ledgers]

    def enough() -> bool:
        return any(one.faults for one in ledgers) or all(
            len(one.acknowledged) >= least and len(one.seen) >= least
            for one, least in zip(ledgers, wanted, strict=True)
        )

    until(enough, RECOVER_SECONDS, "progress on every stream")
    assert [fault for one in ledgers for fault in one.faults] == []


def test_a_cut_between_nodes_and_around_each_loses_and_doubles_nothing(
    deployment: NetworkDeployment,
) -> None:
    """H18 with partitions instead of deaths; an owner that is cut off stops acknowledging."""
    ledgers = [new_ledger(deployment, number, name) for number, name in enumerate(INGESTS)]
    load = Load(deployment, ledgers, seed=1)
    load.start()
    try:
        wait_for_progress(ledgers)
        deployment.network.part()
        wait_for_progress(ledgers, 40)
        deployment.network.join()
        for name, owned in zip(INGESTS, ledgers, strict=True):
            wait_for_progress(ledgers)
            node = deployment.network.nodes[INGESTS.index(name)]
            node.cut_off()
            deployment.wait_alone(name)
            answers = [probe(deployment, owned, name) for _ in range(5)]
            assert not any(answers), f"{name} acknowledged when its lease was over"
            node.join()
            until(
                partial(probe, deployment, owned, name),
                RECOVER_SECONDS,
                "appends at the node again",
            )
        wait_for_progress(ledgers)
    finally:
        unknown = load.stop(RECOVER_SECONDS)
    assert not unknown
    checked = check(deployment, ledgers)
    refused = sum((one.answers for one in ledgers), ledgers[0].answers.__class__())
    print(f"{[one.record_count for one in checked]} records; meanwhile {dict(refused)}")
    assert any("not-owner" in words or "peer-unavailable" in words for words in refused)


def test_who_was_deposed_while_it_was_cut_off_acknowledges_nothing_to_its_clients(
    deployment: NetworkDeployment,
) -> None:
    """M14 of an owner that is awake all the time, with clients who go on asking it."""
    deployment.network.join()  # whatever the test before has left
    path, lost, new = "/v1/streams/deposed", ["lost 0", "lost 1"], ["new 0"]
    deployment.retried(lambda client: client.put(path, json=SLOW))
    old, other = INGESTS

    def append(name: str, *values: str) -> httpx.Response:
        body = {"records": [{"value": value} for value in values]}
        with httpx.Client(base_url=deployment[name].url, timeout=ANSWER_SECONDS) as client:
            return client.post(f"{path}/records", json=body)

    until(lambda: append(old, *lost).status_code == httpx.codes.OK, what="the first append")
    acknowledged: list[httpx.Response] = []
    stop = threading.Event()

    def ask_on() -> None:
        while not stop.is_set():
            # Who is not answered does not know, and asks again; the record may be stored or not.
            with suppress(httpx.TransportError):
                answer = append(old, "to whom I know")
                if answer.status_code == httpx.codes.OK:
                    acknowledged.append(answer)

    node = deployment.network.nodes[0]
    node.cut_off()
    deployment.wait_alone(old)
    asking = threading.Thread(target=ask_on)
    asking.start()
    try:
        gap = _take_over(deployment, path)
        assert gap["first_offset"] == 0
        until(lambda: append(other, *new).status_code == httpx.codes.OK, what="the new owner")
        stop.wait(1)
        assert not acknowledged, "a deposed owner acknowledges"
        node.join()
        # Now it learns of the other one, and passes on what it is asked.
        until(lambda: acknowledged, RECOVER_SECONDS, "the old owner to pass appends on")
    finally:
        stop.set()
        asking.join()
        node.join()
    page = deployment.retried(
        lambda client: client.get(f"{path}/records?offset={gap['next_offset']}&limit=10000")
    )
    values = [one["value"] for one in page["records"]]
    assert values == new + ["to whom I know"] * (len(values) - 1)
    assert len(acknowledged) <= len(values) - 1


def _take_over(deployment: NetworkDeployment, path: str) -> dict[str, Any]:
    """An operator's word that the home is lost; returns the gap."""
    stream_id = deployment.retried(lambda client: client.get(path))["stream_id"]
    with deployment.internal("manifest") as manifest:
        home = manifest.get(f"/internal/v1/streams/{stream_id}").json()["home"]
    body = {"accept_loss": True, "expect_home": home}
    accepted = deployment.retried(
        lambda client: client.post(f"/v1/admin{path[3:]}/takeover", json=body)
    )
    way = f"/v1/operations/{accepted['operation_id']}"

    def done() -> dict[str, Any] | None:
        shown: dict[str, Any] = deployment.retried(lambda client: client.get(way))
        return shown if shown["state"] == "succeeded" else None

    gap: dict[str, Any] = until(done, RECOVER_SECONDS, "the takeover")["result"]["gap"]
    return gap
