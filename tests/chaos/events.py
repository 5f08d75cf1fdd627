"""What befalls a deployment: troubles that last for a while, and strikes in the midst of them.

Everything is drawn from one seed. What exactly a draw hits is up to the machine: a seed repeats
the plan of a run, not its interleaving.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from support.fault_deployment import READ_SECONDS
from support.faults import CONFLICT, SLOW_DOWN, UNAVAILABLE, Fault, Rule
from support.links import Trouble
from support.waiting import until

from chaos.deployment import (
    BEYOND_LEASE_SECONDS,
    NAMES,
    SPARE,
    START_SECONDS,
    ChaosDeployment,
)
from chaos.lost_disks import LostDisks

_OBJECT: Final = r"\.(fragment|manifest|g[0-9]+|wal)(\?|$)"
"""What carries a stream, or several; roots and groups among it."""
_PUTS: Final = (
    Fault.LOSE_REQUEST,
    Fault.LATE_REQUEST,
    Fault.CUT_REQUEST,
    Fault.FLIP_REQUEST,
    Fault.LOSE_REPLY,
)
HEARD_SECONDS: Final = 30.0
"""By then a session of the past was refused, if there is one and anything is uploaded."""
_GETS: Final = (Fault.TRUNCATE, Fault.TRUNCATE_AND_RESET, Fault.FLIP, Fault.STALL, Fault.DRIP)


@dataclass
class Story:
    """What was done, in words and numbers."""

    kills: Counter[str] = field(default_factory=Counter)
    """By service."""
    ready_kills: int = 0
    """Of services that had started, and not in the midst of their start."""
    events: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    aloud: bool = False

    def tell(self, words: str) -> None:
        self.lines.append(f"{time.strftime('%H:%M:%S')} {words}")
        if self.aloud:
            print(self.lines[-1], flush=True)

    def count(self, event: str, words: str = "") -> None:
        self.events[event] += 1
        self.tell(f"{event} {words}")


@dataclass
class Scene:
    """What an event may use."""

    deployment: ChaosDeployment
    chance: random.Random
    story: Story
    damage_allowed: threading.Event
    victims: tuple[str, ...] = NAMES
    """Whom strikes meet."""
    long: bool = False
    """Stores may be away for minutes."""
    disks: LostDisks | None = None
    """Takes the disks of some that are killed, where these may be lost."""

    def wait(self, least: float, most: float) -> None:
        threading.Event().wait(self.chance.uniform(least, most))

    def pick(self, *names: str) -> str:
        return self.chance.choice(names)


Event = Callable[[Scene], AbstractContextManager[None]]
"""A trouble that lasts as long as its block."""


@contextmanager
def calm(_: Scene) -> Iterator[None]:
    yield


@contextmanager
def pause_short(scene: Scene) -> Iterator[None]:
    """SIGSTOP of anybody, for less than a lease."""
    name = scene.pick(*scene.deployment.names)
    scene.story.count("paused shortly", name)
    scene.deployment.stop(name)
    try:
        yield
        scene.wait(0.1, 1.5)
    finally:
        scene.deployment.go_on(name)


@contextmanager
def pause_long(scene: Scene) -> Iterator[None]:
    """SIGSTOP of anybody, and mostly of an ingest node, for longer than its lease."""
    ingests = scene.deployment.ingests
    name = scene.pick(*scene.deployment.names, *ingests, *ingests)
    scene.story.count("paused beyond the lease", name)
    scene.deployment.stop(name)
    try:
        scene.wait(0, BEYOND_LEASE_SECONDS)
        yield
        scene.wait(BEYOND_LEASE_SECONDS, BEYOND_LEASE_SECONDS + 1)
    finally:
        scene.deployment.go_on(name)


@contextmanager
def valkey_away(scene: Scene) -> Iterator[None]:
    """SIGKILL of Valkey, which comes back with its file."""
    scene.story.count("valkey killed")
    scene.deployment.kill_valkey()
    try:
        yield
        scene.wait(0, 4)
    finally:
        scene.deployment.revive_valkey()


@contextmanager
def store_away(scene: Scene) -> Iterator[None]:
    """Nobody answers at the store, or it says that it cannot."""
    rule = scene.chance.choice(
        (Rule(Fault.LOSE_REQUEST), Rule(Fault.REFUSE, answer=UNAVAILABLE), Rule(Fault.STALL))
    )
    scene.story.count("store away", rule.fault)
    scene.deployment.proxy.arm(rule)
    try:
        yield
        if scene.long and scene.chance.random() < 0.1:
            scene.wait(60, 150)
        else:
            scene.wait(1, 6)
    finally:
        scene.deployment.proxy.calm()


@contextmanager
def _armed(scene: Scene, *rules: Rule) -> Iterator[None]:
    scene.deployment.proxy.arm(*rules)
    try:
        yield
        scene.wait(1, 4)
    finally:
        scene.deployment.proxy.calm()


def store_slow(scene: Scene) -> AbstractContextManager[None]:
    scene.story.count("store slow")
    return _armed(
        scene,
        Rule(Fault.DRIP, chance=0.5, pause_seconds=scene.chance.uniform(0.02, READ_SECONDS / 8)),
        Rule(Fault.REFUSE, answer=SLOW_DOWN, chance=0.2),
    )


def store_faults(scene: Scene) -> AbstractContextManager[None]:
    """All that may befall a request, each by chance."""
    scene.story.count("store faults")
    rules = [Rule(fault, "PUT", _OBJECT, chance=0.03) for fault in _PUTS]
    rules += [Rule(fault, "GET", _OBJECT, chance=0.02) for fault in _GETS]
    rules += [
        Rule(Fault.REFUSE, "PUT", _OBJECT, answer=CONFLICT, chance=0.03),
        Rule(Fault.MISREPORT, "PUT", _OBJECT, answer=CONFLICT, chance=0.03),
        Rule(Fault.REFUSE, answer=UNAVAILABLE, chance=0.05),
    ]
    scene.damage_allowed.set()
    return _armed(scene, *rules)


@contextmanager
def links_disturbed(scene: Scene) -> Iterator[None]:
    links = scene.deployment.links
    names = scene.chance.sample(sorted(links.by_name), scene.chance.choice((1, 1, 2, 4)))
    for name in names:
        trouble = scene.chance.choice(list(Trouble))
        scene.story.count(f"link: {trouble}", name)
        links.disturb(name, trouble)
    try:
        yield
        scene.wait(0.2, 3)
    finally:
        links.calm()


@contextmanager
def node_cut_off(scene: Scene) -> Iterator[None]:
    """An ingest node reaches nobody, and nobody reaches it, for longer than its
    lease; its clients do."""
    name = scene.pick(*scene.deployment.ingests)
    scene.story.count("cut off beyond the lease", name)
    trouble = scene.chance.choice((Trouble.STALL, Trouble.BLACK_HOLE))
    for link in scene.deployment.links_of(name):
        scene.deployment.links.disturb(link, trouble)
    try:
        scene.wait(0, BEYOND_LEASE_SECONDS)
        yield
        scene.wait(BEYOND_LEASE_SECONDS, BEYOND_LEASE_SECONDS + 1)
    finally:
        scene.deployment.links.calm()


@contextmanager
def others_cut_off(scene: Scene) -> Iterator[None]:
    """All ingest nodes but one are reached by nobody, for longer than an owner waits for them before it
    gives a stream away; they reach coordination, and so does the one."""
    ingests = scene.deployment.ingests
    one = scene.pick(*ingests)
    scene.story.count("the others cut off", f"but {one}")
    trouble = scene.chance.choice((Trouble.REFUSE, Trouble.STALL, Trouble.BLACK_HOLE))
    for name in ingests:
        if name != one:
            scene.deployment.links.disturb(f"*>{name}", trouble)
    try:
        yield
        scene.wait(4, 8)
    finally:
        scene.deployment.links.calm()


@contextmanager
def disk_full(scene: Scene) -> Iterator[None]:
    name = scene.pick(*scene.deployment.ingests)
    disk = scene.deployment.disks[name]
    scene.story.count(f"disk full ({disk.kind})", name)
    disk.fill()
    try:
        scene.wait(0.5, 3)
        yield
        scene.wait(0, 1)
    finally:
        disk.free()


@contextmanager
def second_uploader(scene: Scene) -> Iterator[None]:
    """The uploader sleeps beyond any lease, another one takes its place, and it wakes up."""
    deployment = scene.deployment
    scene.story.count("second uploader")
    fenced = deployment.fenced_count
    deployment.stop("uploader")
    deployment[SPARE].spawn()
    try:
        # It is at work before the other one wakes up, however long a start takes here.
        until(
            lambda: deployment.has_started(SPARE) or deployment[SPARE].is_dead, START_SECONDS, SPARE
        )
        scene.wait(1, BEYOND_LEASE_SECONDS)
        yield
        deployment.go_on("uploader")
        # Both are at it now, at least until one has heard of the other.
        scene.wait(3, 6)
        deadline = time.monotonic() + HEARD_SECONDS
        while deployment.fenced_count == fenced and time.monotonic() < deadline:
            threading.Event().wait(0.1)
    finally:
        deployment.go_on("uploader")
        if scene.chance.random() < 0.5:
            scene.story.kills += deployment.kill_running("uploader")
        scene.story.kills += deployment.kill_running(SPARE)


TROUBLES: Final[tuple[Event, ...]] = (
    *(calm, calm, calm),
    pause_short,
    pause_long,
    valkey_away,
    store_away,
    store_slow,
    store_faults,
    *(links_disturbed, links_disturbed),
    node_cut_off,
    disk_full,
    second_uploader,
)
"""A deck: all of it is drawn in some order, and then shuffled anew."""
REPLICA_TROUBLES: Final = (*TROUBLES, others_cut_off)
"""For streams that several nodes hold."""


def strike(scene: Scene) -> None:
    """SIGKILL of one service or several, or SIGTERM of one; who is away is started again."""
    deployment, chance, story = scene.deployment, scene.chance, scene.story
    if chance.random() < 0.12:
        name = scene.pick(*(one for one in scene.victims if one not in deployment.stopped))
        kill_after = chance.choice((None, None, chance.uniform(0, 1.5)))
        what = deployment.terminate(name, kill_after)
        story.count(f"SIGTERM, {what}", name)
        story.kills[name] += what == "killed"
    else:
        count = min(
            chance.choice((1, 1, 1, 1, 2, 2, 3, 4, len(deployment.names))), len(scene.victims)
        )
        victims = chance.sample(scene.victims, count)
        if scene.disks is not None:
            victims = scene.disks.choose(victims)
        story.ready_kills += sum(deployment.has_started(name) for name in victims)
        killed = deployment.kill_running(*victims)
        story.kills += killed
        story.tell(f"killed {', '.join(killed)}")
        for name in scene.disks.take(killed) if scene.disks is not None else ():
            story.count("disk lost for good", name)
    deployment.spawn()
