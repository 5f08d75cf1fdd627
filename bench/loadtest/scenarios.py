"""What a load test does: scenarios as data, and how one is written to a file and read again. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from support.faults import Fault
from support.latencies import STORES

from bench.loadtest.routing import Policy

OPEN, CLOSED = "open", "closed"


class BadScenario(ValueError):
    """A scenario, or a change of one, that cannot be run; the message says why."""


@dataclass(frozen=True)
class Kill:
    """SIGKILL of a service."""

    at_seconds: float
    service: str
    again_after_seconds: float | None = None
    """It is started again so much later; without a number it stays away, which only a node of
    leaderless streams can."""


@dataclass(frozen=True)
class StoreTrouble:
    """The object store disturbs requests for a while."""

    at_seconds: float
    seconds: float
    fault: str
    """The name of a fault of `support/faults.py`, such as `LOSE_REPLY`."""
    method: str = "PUT"
    chance: float = 0.1


@dataclass(frozen=True)
class Scenario:
    """One load on one stack."""

    name: str
    about: str
    nodes: int
    """Ingest nodes."""
    streams: int
    seconds: float
    """How long the load lasts."""
    profile: str = "leaderless"
    owners: int = 2
    """Nodes that appends of a stream may go to. A local stream has one."""
    policy: Policy = Policy.ROUND_ROBIN
    producers: int = 1
    """Of each stream. Each has one append under way."""
    loop: str = OPEN
    appends_per_second: float = 60.0
    """Of all streams together, in an open loop."""
    clients: int = 16
    """In a closed loop: appends that are under way together."""
    under_way_max: int = 200
    """Appends that are sent and not answered; others wait, and their latency goes on."""
    waiting_max: int = 1_000
    """Appends of an open loop that may wait for the one before them, of a producer; more are left
    out, and counted."""
    records: int = 3
    """Of an append."""
    record_bytes: int = 400
    """At most so many letters of a record."""
    store: str = "standard"
    """How long the object store takes: `standard`, `express` or `none`."""
    troubles: Sequence[Kill | StoreTrouble] = ()
    interval_seconds: float = 30.0
    """Of the lines about clients and of the metrics of services."""
    fragment_age_ms: int = 60_000
    cold_read: bool = True
    """Everything is read by a reader that has just been started, and has nothing in memory."""
    settle_seconds: float = 300.0
    """After the load, outcomes and rest are waited for so long."""
    seed: int = 20261123
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of all services."""

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"ingest-{number}" for number in range(1, self.nodes + 1))

    @property
    def service_names(self) -> tuple[str, ...]:
        """In the order of their start."""
        return ("manifest", *self.node_names, "uploader", "reader")

    @property
    def stream_names(self) -> tuple[str, ...]:
        return tuple(f"load-{number:05}" for number in range(self.streams))

    @property
    def config(self) -> dict[str, Any]:
        """Of each stream."""
        return {"profile": self.profile, "fragment": {"max_age_ms": self.fragment_age_ms}}

    def check(self) -> "Scenario":
        """Itself, if it can be run.

        Raises:
            BadScenario
        """
        problems = list(_problems(self))
        if problems:
            raise BadScenario(f"the scenario {self.name} cannot be run: {problems[0]}")
        return self

    def to_json(self) -> dict[str, Any]:
        document = dataclasses.asdict(self)
        document["troubles"] = [
            {"kind": type(one).__name__, **dataclasses.asdict(one)} for one in self.troubles
        ]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Scenario":
        """Raises BadScenario where it is not what `to_json` made."""
        try:
            troubles = tuple(_trouble(one) for one in document["troubles"])
            more = {"troubles": troubles, "policy": Policy(document["policy"])}
            return cls(**{**document, **more}).check()
        except (KeyError, TypeError, ValueError) as error:
            raise BadScenario(f"this is no scenario: {error}") from error


_KINDS: Final = {kind.__name__: kind for kind in (Kill, StoreTrouble)}


def _trouble(document: Mapping[str, Any]) -> Kill | StoreTrouble:
    more = dict(document)
    made: Kill | StoreTrouble = _KINDS[more.pop("kind")](**more)
    return made


def _problems(scenario: Scenario) -> Sequence[str]:
    numbers = (
        *("nodes", "streams", "seconds", "owners", "producers", "appends_per_second", "clients"),
        *(
            "under_way_max",
            "waiting_max",
            "records",
            "record_bytes",
            "interval_seconds",
            "settle_seconds",
        ),
        "fragment_age_ms",
    )
    found = [f"{name} is not above 0" for name in numbers if getattr(scenario, name) <= 0]
    if scenario.owners > scenario.nodes:
        found.append(f"{scenario.owners} owners of each stream are more than there are nodes")
    if scenario.profile not in ("leaderless", "local"):
        found.append(f"there is no profile {scenario.profile}")
    if scenario.profile == "local" and scenario.owners != 1:
        found.append("a local stream has one owner")
    if scenario.loop not in (OPEN, CLOSED):
        found.append(f"a loop is {OPEN} or {CLOSED}, not {scenario.loop}")
    if scenario.store not in STORES:
        found.append(f"a store is one of {', '.join(STORES)}, not {scenario.store}")
    for one in scenario.troubles:
        if not 0 <= one.at_seconds < scenario.seconds:
            found.append(f"a trouble at {one.at_seconds} s is outside of the load")
        if isinstance(one, StoreTrouble) and one.fault not in Fault.__members__:
            found.append(f"there is no fault {one.fault}")
        if isinstance(one, Kill):
            found += _problems_of_a_kill(scenario, one)
    return found


def _problems_of_a_kill(scenario: Scenario, kill: Kill) -> list[str]:
    if kill.service not in scenario.service_names:
        return [f"there is no service {kill.service}"]
    can_stay_away = kill.service in scenario.node_names and scenario.profile == "leaderless"
    if kill.again_after_seconds is None and not can_stay_away:
        return [f"nobody does the work of {kill.service} while it stays away"]
    return []


def changed(scenario: Scenario, changes: Sequence[str]) -> Scenario:
    """A scenario with other values, each as `NAME=VALUE`.

    Raises:
        BadScenario: there is no such number or word, or the scenario cannot be run with it.
    """
    more: dict[str, Any] = {}
    kinds = {one.name: one.type for one in dataclasses.fields(scenario)}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or name not in kinds:
            raise BadScenario(f"{change!r} is not NAME=VALUE with a name of resolved-config.json")
        try:
            more[name] = _read(text, kinds[name])
        except (KeyError, ValueError):
            raise BadScenario(f"{text!r} is no value of {name}") from None
    return dataclasses.replace(scenario, **more).check()


def _read(text: str, kind: object) -> object:
    if kind is bool:
        return {"true": True, "false": False}[text.lower()]
    if kind in (Policy, str, int, float):
        assert isinstance(kind, type)
        return kind(text)
    raise ValueError(text)


def _kills(services: Sequence[str], first: float, every: float, away: float) -> tuple[Kill, ...]:
    """One after the other, each started again before the next."""
    return tuple(
        Kill(first + every * place, service, away) for place, service in enumerate(services)
    )


SCENARIOS: Final = {
    one.name: one
    for one in (
        Scenario(
            "smoke",
            "200 leaderless streams over 2 nodes for 2 minutes; a node is killed and comes back",
            nodes=2,
            streams=200,
            seconds=120,
            troubles=(Kill(45, "ingest-1", 20),),
        ),
        Scenario(
            "soak",
            "1,000 leaderless streams over 3 nodes for half an hour; everything is killed in turn",
            nodes=3,
            streams=1_000,
            seconds=1_800,
            producers=2,
            policy=Policy.LEAST_IN_FLIGHT,
            fragment_age_ms=600_000,
            troubles=(
                *_kills(
                    ("ingest-1", "uploader", "ingest-2", "manifest", "ingest-3", "reader") * 2,
                    first=120,
                    every=130,
                    away=20,
                ),
                StoreTrouble(200, 30, "REFUSE", chance=0.1),
                StoreTrouble(600, 30, "LOSE_REPLY", chance=0.05),
                StoreTrouble(1_000, 30, "LOSE_REQUEST", chance=0.05),
            ),
            settle_seconds=900,
        ),
        Scenario(
            "tiny",
            "8 leaderless streams over 2 nodes for 5 seconds; a node is killed and stays away",
            nodes=2,
            streams=8,
            seconds=5,
            appends_per_second=20,
            interval_seconds=1,
            store="express",
            troubles=(Kill(2, "ingest-1"),),
            fragment_age_ms=10_000,
        ),
        Scenario(
            "local",
            "50 local streams over 2 nodes for a minute; a node is killed and comes back",
            nodes=2,
            streams=50,
            seconds=60,
            profile="local",
            owners=1,
            loop=CLOSED,
            clients=8,
            interval_seconds=10,
            troubles=(Kill(20, "ingest-1", 5),),
        ),
    )
}
