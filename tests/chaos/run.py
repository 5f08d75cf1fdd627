"""A run: start everything, disturb it for a while by a seed, and look whether anything is wrong."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import httpx
from support.s3 import S3Server
from support.waiting import until

from chaos.checker import Checked, check
from chaos.deployment import (
    NAMES,
    ChaosDeployment,
    QueueDeployment,
    ThirdNodeDeployment,
    chaos_deployment,
)
from chaos.events import TROUBLES, Event, Scene, Story, calm, strike
from chaos.followers import check_followers
from chaos.groups import GroupHistory, GroupMember
from chaos.ledger import Ledger, Mode
from chaos.load import Load, Pace, Work
from chaos.lost_disks import LostDisks
from chaos.queues import QueueHistory
from chaos.supers import Grower, SuperLedger, SuperProducer


class StreamPlan(NamedTuple):
    config: Mapping[str, object]
    strict: tuple[Mode, ...]
    """Of one strict producer each."""
    plain_count: int = 1


_LEADERLESS: Final = {
    "profile": "leaderless",
    "fragment": {"target_bytes": 65_536, "max_age_ms": 10_000},
}
_STRICT: Final = (Mode.DENSE, Mode.DENSE)
LOCAL: Final = (
    StreamPlan({"fragment": {"target_bytes": 65_536, "max_age_ms": 100}}, _STRICT),
    StreamPlan({"fragment": {"target_bytes": 131_072, "max_age_ms": 1_000}}, _STRICT),
    StreamPlan({"fragment": {"target_bytes": 65_536, "max_age_ms": 3_000}}, _STRICT),
)
"""Who is quick to tier, and who has a tail most of the time."""
STREAMS: Final = (
    LOCAL[0],
    LOCAL[2]._replace(strict=(Mode.HIGHWATER,), plain_count=0),
    StreamPlan(_LEADERLESS, (Mode.DENSE, Mode.HIGHWATER)),
    StreamPlan(_LEADERLESS, (Mode.TXN,)),
)
"""Those without a leader share their objects, and take an EXEC each (`COMMIT_STREAMS`)."""
REPLICATION: Final = {"replication": {"replicas": 3}}
REPLICATED: Final = (
    StreamPlan({**REPLICATION, "fragment": LOCAL[0].config["fragment"]}, _STRICT),
    StreamPlan({**REPLICATION, "fragment": LOCAL[2].config["fragment"]}, (Mode.HIGHWATER,), 0),
    StreamPlan(
        {**REPLICATION, "fragment": {"target_bytes": 4_194_304, "max_age_ms": 10_000}},
        (Mode.DENSE, Mode.TXN),
    ),
)
"""Each lies on three nodes. The last one has a long tail: what is lost of it is lost for good."""
MORE_REPLICATED: Final = (
    *REPLICATED,
    StreamPlan(
        {"replication": {"replicas": 3, "min_in_sync": 3}, "fragment": LOCAL[1].config["fragment"]},
        (Mode.TXN,),
    ),
)
"""And one that takes nothing while any of its nodes is away."""
SUPER_PARTITIONS: Final = 1
"""At first. It grows within seconds, and each partition is a stream more to look at in the end."""
SUPER: Final = {
    "partitions": SUPER_PARTITIONS,
    "fragment": {"target_bytes": 65_536, "max_age_ms": 1_000},
}
SUPER_PRODUCERS: Final = 2
RECOVER_SECONDS: Final = 240.0
"""After a trouble everything has to be at work again by then, on a machine that does other things."""
FURTHER_KILLS: Final = 8
"""So many times the kills of a plan at most, where what it wants does not come."""
DAMAGE_SECONDS: Final = 5.0
"""An answer about damaged bytes may be so late."""


@dataclass(frozen=True)
class Plan:
    kills: int
    seed: int
    long: bool = False
    aloud: bool = False
    seconds_max: float = float("inf")
    """No new trouble begins after so long."""
    troubles: Sequence[Event] = TROUBLES
    victims: tuple[str, ...] = NAMES
    strikes: tuple[int, ...] = (1, 2, 3)
    """In each trouble one of these, if there are victims."""
    pace: Pace = field(default_factory=Pace)
    settings: Mapping[str, str] = field(default_factory=dict)
    streams: Sequence[StreamPlan] = STREAMS
    members: int = 2
    """Of each of two groups: one shares a super stream, the other the first stream; 0: there is no
    super stream either."""
    growths: int = 1
    """Of the super stream, at most; the first one comes in any case."""
    queues: bool = False
    """Whether there are queues, too, and their service is among the victims."""
    third_node: bool = False
    """Whether there is a third ingest node, which is among the victims."""
    lost_disks: int = 0
    """With every so many kills of services the disk of an ingest node is lost for good; 0: never. All
    streams that lie on disks have three replicas then."""
    losses: int = 0
    """It goes on until so many disks are lost."""
    wanted: Callable[["Report"], bool] = lambda _: True
    """It goes on until this is so as well, but for `FURTHER_KILLS` times its kills at most."""

    @property
    def make(self) -> type[ChaosDeployment]:
        if self.third_node:
            return ThirdNodeDeployment
        return QueueDeployment if self.queues else ChaosDeployment

    @property
    def all_victims(self) -> tuple[str, ...]:
        more = [name for name in self.make.names if name not in NAMES]
        return (*self.victims, *more) if self.victims else ()

    @property
    def is_replicated(self) -> bool:
        return all("replication" in one.config for one in self.streams)


@dataclass
class Shared:
    """What is beside the streams: a super stream with its producers, groups with their members, and
    queues."""

    supers: list[SuperLedger]
    groups: list[GroupHistory]
    members: int
    queues: list[QueueHistory]

    def works(self) -> list[Work]:
        """What their clients do, each in a thread of its own."""
        return [
            *(SuperProducer(one, who).work for one in self.supers for who in one.producers),
            *(Grower(one).work for one in self.supers if one.growths),
            *(
                GroupMember(one, f"pod-{number}").work
                for one in self.groups
                for number in range(self.members)
            ),
            *(work for one in self.queues for work in one.works()),
        ]

    def check(self) -> list[str]:
        """What was wrong, in words, when everything was read."""
        lost = [fault for one in self.supers for fault in one.check()]
        return lost + [fault for one in self.groups for fault in one.check()]


@dataclass
class Report:
    """In its words nothing is left out that was counted."""

    plan: Plan
    story: Story
    ledgers: list[Ledger]
    """Of all streams, the partitions of the super stream among them."""
    shared: Shared
    seconds: float = 0.0
    exits: Counter[str] = field(default_factory=Counter)
    fenced: int = 0
    """Upload sessions that ended because of a newer one."""
    happened: Counter[str] = field(default_factory=Counter)
    checked: list[Checked] = field(default_factory=list)
    compared_bytes: int = 0
    """Of files of owners that followers have as well, when all was calm."""
    faults: list[str] = field(default_factory=list)

    @property
    def acknowledged(self) -> int:
        return sum(len(each.acknowledged) for each in self.ledgers)

    @property
    def replayed(self) -> int:
        """Repeats of unknown outcomes that met what they had stored."""
        return sum(one.replayed for one in self.ledgers)

    @property
    def goes_on(self) -> bool:
        """Whether what the plan wants has not come yet, and may come."""
        kills = self.story.kills.total()
        return kills < self.plan.kills * FURTHER_KILLS and not self.plan.wanted(self)

    def __str__(self) -> str:
        each = self.ledgers
        answers = sum((one.answers for one in each), Counter[str]())
        lines = [
            f"chaos: seed {self.plan.seed}, {self.seconds:.0f} s",
            (
                f"  kills {self.story.kills.total()} {dict(sorted(self.story.kills.items()))},"
                f" {self.story.ready_kills} of services that had started"
            ),
            f"  events {dict(sorted(self.story.events.items()))}",
            f"  faults met {dict(sorted(self.happened.items()))}",
            f"  upload sessions fenced {self.fenced}",
            f"  ended at a start with nothing to talk to {dict(self.exits)}",
            f"  answers meanwhile {dict(sorted(answers.items()))}",
            (
                f"  {sum(one.sent.total() for one in each)} records sent,"
                f" {self.acknowledged} acknowledged, {sum(len(one.refused) for one in each)} refused,"
                f" {sum(one.unknown for one in each)} unknown outcomes of which"
                f" {sum(one.replayed for one in each)} were stored;"
                f" {sum(len(one.seen) for one in each)} followed,"
                f" {sum(one.looks for one in each)} looked at"
            ),
            (
                f"  {sum(one.record_count for one in self.checked)} records in"
                f" {sum(one.fragment_count for one in self.checked)} fragments and"
                f" {sum(one.group_count for one in self.checked)} groups,"
                f" {sum(one.stray_count for one in self.checked)} objects left over and swept"
            ),
            *(
                [f"  {self.compared_bytes} bytes of logs are the same on all nodes"]
                if self.plan.is_replicated
                else []
            ),
            *(
                f"  {one.name}: {one.sent.total()} records sent, requests {dict(sorted(one.counts.items()))},"
                f" partitions {one.layouts}"
                for one in self.shared.supers
            ),
            *(
                f"  group {one.name}: {dict(sorted(one.counts.items()))}"
                for one in self.shared.groups
            ),
            *(f"  queues: {dict(sorted(one.load.counts.items()))}" for one in self.shared.queues),
            f"  lost, doubled, skipped or wrong: {len(self.faults)}",
            *(f"  FAULT {fault}" for fault in self.faults),
        ]
        return "\n".join(lines)


def run_chaos(directory: Path, s3: S3Server, plan: Plan) -> Report:
    """Do what the plan says; what was wrong stands in the report. From the main thread only."""
    begun = time.monotonic()
    story = Story(aloud=plan.aloud)
    ledgers = [_ledger(number, one) for number, one in enumerate(plan.streams)]
    shared = _shared(plan, ledgers)
    report = Report(plan, story, ledgers, shared)
    with chaos_deployment(
        directory, s3, plan.settings, seed=plan.seed, make=plan.make
    ) as deployment:
        for ledger, stream in zip(ledgers, plan.streams, strict=True):
            made = deployment.retried(partial(_create, ledger.path, stream.config))
            ledger.stream_id = made["stream_id"]
        for one in shared.supers:
            made = deployment.retried(partial(_create, one.path, SUPER))
            one.take_partitions(made)
            ledgers += one.parts
        for history in shared.queues:
            history.create(deployment, LOCAL[0].config)
        load = Load(deployment, ledgers, plan.seed, plan.pace, shared.works())
        load.start()
        try:
            _disturb(deployment, load, plan, report)
            deployment.links.calm()
            deployment.proxy.calm()
            if not _faults(deployment, ledgers):
                deployment.start()
            if plan.is_replicated and not _faults(deployment, ledgers):
                _fill_logs(deployment, ledgers)
        finally:
            patience = 0.0 if _faults(deployment, ledgers) else RECOVER_SECONDS
            unknown = load.stop(patience)
            report.faults += unknown if patience else []
        report.faults += _faults(deployment, ledgers)
        if not report.faults:
            try:
                if plan.is_replicated:
                    report.compared_bytes = check_followers(deployment, ledgers)
                    deployment.start()
                report.checked = check(deployment, ledgers)
                report.faults += shared.check()
                for history in shared.queues:
                    history.check(deployment)
            except AssertionError as error:
                report.faults.append(str(error))
        report.faults += [one for one in _faults(deployment, ledgers) if one not in report.faults]
        report.exits = deployment.exits
        report.fenced = deployment.fenced_count
        report.happened += Counter({str(one): n for one, n in deployment.links.happened.items()})
        report.happened += Counter(str(deed.rule.fault) for deed in deployment.proxy.story)
        if report.faults:
            print("\n".join(story.lines[-60:]))
            for name, log in deployment.log_ends().items():
                print(f"--- {name}\n{log}")
            for name, bug in deployment.bugs().items():
                print(f"--- a bug of {name}\n{bug}")
    report.seconds = time.monotonic() - begun
    return report


def _ledger(number: int, plan: StreamPlan) -> Ledger:
    first = 10 * number
    strict = range(first, first + len(plan.strict))
    plain = range(strict.stop, strict.stop + plan.plain_count)
    return Ledger(f"chaos-{number}", strict, plain, dict(zip(strict, plan.strict, strict=True)))


def _shared(plan: Plan, ledgers: list[Ledger]) -> Shared:
    queues = [QueueHistory(ledgers[0])] if plan.queues else []
    if not plan.members:
        return Shared([], [], 0, queues)
    first = 10 * len(ledgers)
    producers = range(first, first + SUPER_PRODUCERS)
    whole = SuperLedger("chaos-super", SUPER_PARTITIONS, producers, plan.growths)
    groups = [
        GroupHistory(whole.path, "billing", whole.places),
        GroupHistory(ledgers[0].path, "audit", ledgers[:1]),
    ]
    return Shared([whole], groups, plan.members, queues)


def _create(path: str, config: object, client: httpx.Client) -> httpx.Response:
    return client.put(path, json=config)


def _disturb(deployment: ChaosDeployment, load: Load, plan: Plan, report: Report) -> None:
    begun = time.monotonic()
    chance = random.Random(plan.seed)
    disks = (
        LostDisks(deployment, report.ledgers, plan.lost_disks, plan.seed)
        if plan.lost_disks
        else None
    )
    scene = Scene(
        deployment,
        chance,
        report.story,
        load.damage_allowed,
        plan.all_victims,
        plan.long,
        disks,
    )
    deck: list[Event] = []
    while (
        report.story.kills.total() < plan.kills
        or (disks and disks.count < plan.losses)
        or report.goes_on
    ):
        if time.monotonic() - begun > plan.seconds_max or _faults(deployment, report.ledgers):
            return
        deck = deck or chance.sample(plan.troubles, len(plan.troubles))
        trouble = deck.pop()
        deployment.troubled = trouble is not calm
        with trouble(scene):
            for _ in range(chance.choice(plan.strikes) if plan.victims else 0):
                scene.wait(0.02, 1.0)
                try:
                    strike(scene)
                except AssertionError as error:
                    deployment.faults.append(f"after {report.story.lines[-1]}: {error}")
                    return
        report.story.tell("calm")
        _recover(deployment, report, disks)
        report.story.tell("at work again")
        if load.damage_allowed.is_set():
            threading.Event().wait(DAMAGE_SECONDS)
            load.damage_allowed.clear()


def _recover(deployment: ChaosDeployment, report: Report, disks: LostDisks | None) -> None:
    """Everything runs, every stream takes appends and is read again, and is where it is to be."""
    try:
        deployment.start()
        if disks is not None:
            disks.heal()
        # Not those that it gets while this is waited for.
        ledgers = [*report.ledgers]
        known = [(len(one.acknowledged), len(one.seen)) for one in ledgers]
        passed = [one.passed_count for one in report.shared.groups]
        done = [one.done_count for one in report.shared.queues]

        def at_work() -> bool:
            return bool(_faults(deployment, report.ledgers)) or (
                all(
                    len(one.acknowledged) > acknowledged and len(one.seen) > seen
                    for one, (acknowledged, seen) in zip(ledgers, known, strict=True)
                )
                and all(
                    one.passed_count > count
                    for one, count in zip(report.shared.groups, passed, strict=True)
                )
                and all(
                    now > then
                    for one, before in zip(report.shared.queues, done, strict=True)
                    for now, then in zip(one.done_count, before, strict=True)
                )
            )

        until(at_work, RECOVER_SECONDS, "every stream to be at work again")
    except AssertionError as error:
        ends = [(one.name, len(one.acknowledged), len(one.seen)) for one in report.ledgers]
        ends += [(one.name, one.passed_count, 0) for one in report.shared.groups]
        ends += [("queues", *one.done_count) for one in report.shared.queues]
        deployment.faults.append(f"after {report.story.lines[-1]}: {error}; {ends}")


def _fill_logs(deployment: ChaosDeployment, ledgers: list[Ledger]) -> None:
    """Have every stream append something that stays in logs, since nobody uploads any more."""
    deployment.kill_running("uploader")
    known = [len(one.acknowledged) for one in ledgers]

    def is_filled() -> bool:
        return bool(_faults(deployment, ledgers)) or all(
            len(one.acknowledged) > count for one, count in zip(ledgers, known, strict=True)
        )

    try:
        until(is_filled, RECOVER_SECONDS, "every stream to append something more")
    except AssertionError as error:
        deployment.faults.append(str(error))


def _faults(deployment: ChaosDeployment, ledgers: list[Ledger]) -> list[str]:
    return [*deployment.faults, *(fault for ledger in ledgers for fault in ledger.faults)]
