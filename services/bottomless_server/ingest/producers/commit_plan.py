"""Staged batches: what a file of them is called, how many become one append, and the plan of that.

A staged batch is the body of one request, frames as storage keeps them, in one file or object. The name
of a file says all that has to be known of it without opening it, so that a start reads names
only. A commit names batches in order; those that are too large together for one append become
parts, and what is in which part is written down before the first of them is appended: see
staged/commits.py.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from bottomless.errors import Code, Fault, InvalidRequest, NotFound, Outcome
from bottomless.formats.checks import check
from bottomless.formats.sealed_json import seal, unseal, version_of
from bottomless.model.limits import CHUNK_BATCH_COUNT_MAX, CHUNK_RECORD_COUNT_MAX, MIB
from bottomless.model.unknown_member import unknown_member
from bottomless_server.core.short_hash import hash_of

COMMIT_COUNT_MAX: Final = 10_000
"""Batches that one commit names."""
_FRAME_COUNT_MAX: Final = CHUNK_BATCH_COUNT_MAX // 2
_ID: Final = re.compile(r"st_[0-9a-f]{32}", re.ASCII)
_FILE: Final = re.compile(
    r"(st_[0-9a-f]{32})\.([0-9]{1,15})\.([0-9]{1,10})\.([0-9]{1,10})\.([0-9]{1,10})\.staged",
    re.ASCII,
)
PLAN_SUFFIX: Final = ".plan"
PLAN_SIZE_MAX: Final = 4 * MIB
"""Ten thousand ids of 40 bytes are a tenth of it."""
_MEMBERS: Final = ("producer_id", "number", "created_at", "parts")
_VERSION: Final = 2
_MEMBERS_2: Final = ("producer_id", "epoch", "number", "created_at", "parts")
_NUMBER_MAX: Final = 2**63 - 1


class StagedBatch(NamedTuple):
    """A file of staged records; its name is made of these fields."""

    staged_id: str
    created_at: int
    size: int
    record_count: int
    frame_count: int

    @property
    def file_name(self) -> str:
        numbers = f"{self.created_at}.{self.size}.{self.record_count}.{self.frame_count}"
        return f"{self.staged_id}.{numbers}.staged"


class CommitPlan(NamedTuple):
    """The plan of a commit: which batches are in which part."""

    producer_id: str
    number: int
    """The number of the commit."""
    created_at: int
    parts: tuple[tuple[str, ...], ...]
    """Ids of the batches of each."""
    epoch: int | None
    """The epoch of the producer. None in a plan of version 1, whose parts have the numbers from
    that of the commit on, and not those of commit_parts.py."""

    @property
    def staged_ids(self) -> list[str]:
        return [staged_id for part in self.parts for staged_id in part]


def parse_file_name(name: str) -> StagedBatch | None:
    """What a file is, by its name; None if it is something else."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    created_at, size, record_count, frame_count = map(int, match.groups()[1:])
    return StagedBatch(match[1], created_at, size, record_count, frame_count)


def plan_name(producer_id: str) -> str:
    """The file of a producer's plan: it has one at most."""
    return hash_of(producer_id.encode("ascii")).hex() + PLAN_SUFFIX


def encode_plan(plan: CommitPlan) -> bytes:
    members = plan._asdict()
    if plan.epoch is None:
        return seal({name: members[name] for name in _MEMBERS})
    return seal({name: members[name] for name in _MEMBERS_2}, _VERSION)


def decode_plan(data: bytes) -> CommitPlan:
    """Read a plan of either version.

    Raises:
        Corrupt: nobody wrote it so.
    """
    what = "plan of a commit"
    numbers = ["number", "created_at"]
    if version_of(data) == _VERSION:
        members = unseal(what, data, _MEMBERS_2, _VERSION)
        numbers.append("epoch")
    else:
        members = {**unseal(what, data, _MEMBERS), "epoch": None}
    parts = members["parts"]
    check(what, type(members["producer_id"]) is str, "it has no producer")
    for name in numbers:
        number = members[name]
        check(what, type(number) is int and 0 <= number <= _NUMBER_MAX, f"its {name} is not one")
    check(what, isinstance(parts, list) and all(map(_is_part, parts)), "its parts are not ids")
    return CommitPlan(**{**members, "parts": tuple(map(tuple, parts))})


def _is_part(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is str and _ID.fullmatch(one) for one in value)


class PartSpace:
    """How much more one part of a commit takes: whole batches, at least one."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._size = self._records = self._frames = self._number = 0

    def take(self, size: int, record_count: int, frame_count: int) -> bool:
        """Whether a batch goes into this part; the first always does."""
        self._size += size
        self._records += record_count
        self._frames += frame_count
        self._number += 1
        # Compressed records are small: their number is bounded too, since one chunk may get all.
        return self._number == 1 or (
            self._size <= self._size_max
            and self._records <= CHUNK_RECORD_COUNT_MAX
            and self._frames <= _FRAME_COUNT_MAX
        )


def parts_of(batches: Sequence[StagedBatch], size_max: int) -> list[list[StagedBatch]]:
    """Divide whole batches, in their order, among appends: as many as fit, at least one each."""
    parts: list[list[StagedBatch]] = []
    space = PartSpace(size_max)
    for batch in batches:
        if not parts or not space.take(batch.size, batch.record_count, batch.frame_count):
            parts.append([])
            space = PartSpace(size_max)
            space.take(batch.size, batch.record_count, batch.frame_count)
        parts[-1].append(batch)
    return parts


def read_staged_ids(value: Any) -> list[str]:
    """The batches that the body of a commit names.

    Raises:
        InvalidRequest: 422 with a pointer to the fault.
    """
    if not isinstance(value, dict):
        raise _invalid("", "must be an object with the member staged")
    if value.keys() != {"staged"}:
        others = [name for name in value if name != "staged"]
        sentence = unknown_member(others, ("staged",)) if others else "must have one member, staged"
        raise _invalid("", sentence)
    ids = value["staged"]
    if not isinstance(ids, list) or not 1 <= len(ids) <= COMMIT_COUNT_MAX:
        raise _invalid("/staged", f"must be a list of 1 to {COMMIT_COUNT_MAX} ids")
    for number, staged_id in enumerate(ids):
        if not isinstance(staged_id, str) or not _ID.fullmatch(staged_id):
            raise _invalid(f"/staged/{number}", "must be the id of a staged batch")
    if len(set(ids)) < len(ids):
        raise _invalid("/staged", "must not have an id twice")
    return ids


def staged_not_found() -> NotFound:
    return NotFound(
        "a staged batch is not there: it expired, or was never staged here",
        code=Code.STAGED_NOT_FOUND,
    )


def rest_not_found(part_count: int) -> NotFound:
    return NotFound(
        "parts of this commit are stored, and what was staged for the rest is not here: "
        "look at what is stored, and delete the producer to store it anew",
        code=Code.STAGED_NOT_FOUND,
        outcome=Outcome.UNKNOWN,
        facts={"stored_parts": part_count},
    )


def _invalid(pointer: str, sentence: str) -> InvalidRequest:
    fault = Fault(Code.VALIDATION_FAILED, sentence, pointer=pointer)
    return InvalidRequest("the body is not valid", code=Code.VALIDATION_FAILED, faults=[fault])
