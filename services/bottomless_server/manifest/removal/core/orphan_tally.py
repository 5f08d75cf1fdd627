"""Tell the kinds of objects by their keys and the streams they belong to, and count orphans. Pure."""

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from bottomless.formats.keys import (
    SYSTEM_PREFIX,
    parse_api_key_key,
    parse_consumers_key,
    parse_root_key,
    parse_staged_key,
    parse_staged_plan_key,
    parse_super_key,
    parse_wal_key,
)
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.names import StreamId
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.manifest.tree.core.delete_queue import DeleteTarget, parse_delete_target

NAMED_COUNT_MAX: Final = 100
"""Prefixes, streams and keys that a report names; more are counted only."""

_HOME = re.compile(r"([^/]+)/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/", re.ASCII)


class ObjectKind(StrEnum):
    FRAGMENT = "fragment"
    GROUP = "group"
    ROOT = "root"
    REGISTRY = "registry"
    CONSUMERS = "consumers"
    SUPER = "super"
    """What a super stream is, under one version."""
    STAGED = "staged"
    """A staged batch, or the plan of a commit of some: no manifest leads to it, committed or not."""
    WAL = "wal"
    """It belongs to an instance of a writer, and to no stream."""


_SHOWN_IF_ANY: Final = frozenset({ObjectKind.STAGED, ObjectKind.WAL, ObjectKind.SUPER})
"""Kinds that most installations have none of."""


@dataclass(frozen=True, slots=True)
class OrphanCandidate:
    """An object of a known kind that may be an orphan."""

    facts: ObjectFacts
    target: DeleteTarget
    kind: ObjectKind


def home_of(object_key: str) -> str | None:
    """The prefix of the stream that a key belongs to; None of any other key."""
    match = _HOME.match(object_key)
    return None if match is None else match[0]


def stream_of(home: str) -> StreamId:
    return StreamId(home.split("/")[1])


def after_home(home: str) -> str:
    """A key that sorts after every key of a prefix, and before all that follow."""
    return home[:-1] + chr(ord("/") + 1)


def candidate(facts: ObjectFacts, drive: int = DEFAULT_NUMBER) -> OrphanCandidate | None:
    """None of a key whose kind is not known, or that has no place on a drive of this number: nobody
    knows who needs it."""
    target = parse_delete_target(facts.object_key.encode("ascii", "replace"), drive)
    if target is None or target.object_key != facts.object_key or target.range is not None:
        return None
    return OrphanCandidate(facts, target, _kind(target))


def stored_kind(object_key: str) -> str:
    """Tell what is stored under a key, also where nobody collects it: `key` of an API key, `system` of
    what else is ours, `unknown` of all others."""
    one = candidate(ObjectFacts(object_key, 0, 0, None))
    if one is not None:
        return one.kind.value
    if parse_wal_key(object_key) is not None:
        return ObjectKind.WAL.value
    if parse_super_key(object_key) is not None:
        return ObjectKind.SUPER.value
    if parse_api_key_key(object_key) is not None:
        return "key"
    return "system" if object_key.startswith(SYSTEM_PREFIX) else "unknown"


def _kind(target: DeleteTarget) -> ObjectKind:
    if target.registry_version is not None:
        return ObjectKind.REGISTRY
    if target.height > 0:
        return ObjectKind.GROUP
    if target.first_offset is not None:
        return ObjectKind.FRAGMENT
    if parse_staged_key(target.object_key) or parse_staged_plan_key(target.object_key):
        return ObjectKind.STAGED
    if parse_consumers_key(target.object_key) is not None:
        return ObjectKind.CONSUMERS
    assert parse_root_key(target.object_key) is not None
    return ObjectKind.ROOT


@dataclass(slots=True)
class OrphanTally:
    """The report of a collection as far as it has come; plain JSON goes in and out."""

    streams: int = 0
    objects: int = 0
    orphans: dict[str, list[int]] = field(default_factory=dict)
    """How many orphans there are and how many bytes they have, by kind."""
    unknown: list[int] = field(default_factory=lambda: [0, 0])
    """Objects whose kind is not known, or that belong to no stream: never deleted."""
    queued: int = 0
    """Orphans that were handed to the delete queue."""
    refused: int = 0
    """Orphans at the first look that the second one, after others had to begin anew, found named."""
    unknown_prefixes: list[dict[str, Any]] = field(default_factory=list)
    unknown_prefix_count: int = 0
    last_unknown: str = ""
    skipped: list[dict[str, str]] = field(default_factory=list)
    skipped_count: int = 0
    examples: list[str] = field(default_factory=list)
    """Keys of the first orphans."""
    stored: dict[str, list[int]] = field(default_factory=dict)
    """How many objects there are and how many bytes they have, by kind; no part of the report."""
    skipped_drives: list[dict[str, Any]] = field(default_factory=list)
    """Drives that were away, by number."""

    @classmethod
    def of(cls, progress: Mapping[str, Any]) -> "OrphanTally":
        # The operation must stay as it was: by that it is recognised when it is moved on.
        return cls(**deepcopy(progress.get("_tally", {})))

    def members(self) -> dict[str, Any]:
        """To go on from in the next step."""
        members = {name: getattr(self, name) for name in self.__slots__}
        if not self.skipped_drives:
            # An older release, which goes on with it, does not know the member.
            del members["skipped_drives"]
        return members

    def add_orphans(self, found: Iterable[OrphanCandidate]) -> None:
        for one in found:
            self.add_orphan(one.kind, one.facts)

    def add_orphan(self, kind: ObjectKind, facts: ObjectFacts) -> None:
        counts = self.orphans.setdefault(kind.value, [0, 0])
        counts[0] += 1
        counts[1] += facts.size
        if len(self.examples) < NAMED_COUNT_MAX:
            self.examples.append(facts.object_key)

    def add_stored(self, page: Iterable[ObjectFacts]) -> None:
        for facts in page:
            counts = self.stored.setdefault(stored_kind(facts.object_key), [0, 0])
            counts[0] += 1
            counts[1] += facts.size

    def add_unknown(self, facts: ObjectFacts) -> None:
        self.unknown[0] += 1
        self.unknown[1] += facts.size

    def add_unknown_prefix(self, home: str, page: Iterable[ObjectFacts]) -> None:
        sizes = [facts.size for facts in page]
        if self.last_unknown != home:
            self.last_unknown = home
            self.unknown_prefix_count += 1
            if len(self.unknown_prefixes) < NAMED_COUNT_MAX:
                self.unknown_prefixes.append({"prefix": home, "objects": 0, "bytes": 0})
        if self.unknown_prefixes[-1]["prefix"] == home:
            self.unknown_prefixes[-1]["objects"] += len(sizes)
            self.unknown_prefixes[-1]["bytes"] += sum(sizes)

    def skip(self, home: str, code: str) -> None:
        self.skipped_count += 1
        if len(self.skipped) < NAMED_COUNT_MAX:
            self.skipped.append({"stream_id": stream_of(home), "code": code})

    def skip_drive(self, number: int, code: str) -> None:
        self.skipped_drives.append({"drive": number, "code": code})

    def report(self) -> dict[str, Any]:
        """The report that people see."""
        counted = {
            kind.value: self.orphans.get(kind.value, [0, 0])
            for kind in ObjectKind
            if kind not in _SHOWN_IF_ANY or kind.value in self.orphans
        }
        return {
            "streams": self.streams,
            "objects": self.objects,
            "orphan_count": sum(count for count, _ in counted.values()),
            "orphan_bytes": sum(size for _, size in counted.values()),
            "orphans": {kind: _counts(counts) for kind, counts in counted.items()},
            "unknown": _counts(self.unknown),
            "queued": self.queued,
            "refused": self.refused,
            "unknown_prefix_count": self.unknown_prefix_count,
            "unknown_prefixes": self.unknown_prefixes,
            "skipped_count": self.skipped_count,
            "skipped": self.skipped,
            "examples": self.examples,
            **({"skipped_drives": self.skipped_drives} if self.skipped_drives else {}),
        }


def _counts(counts: list[int]) -> dict[str, int]:
    return {"objects": counts[0], "bytes": counts[1]}
