"""What a start does about the message files that it finds, by what the ledger says of them.

| Found | Then |
|---|---|
| longer than its row | cut to it |
| shorter, or missing and not `doomed` | its items are damaged where it is short |
| several are needed, and none is there | refused: their directory is another one, or is not mounted |
| `moving`, and no message names it | removed, with its row |
| no row, and its number is the next one | removed: the round that made it was not committed |
| no row, and another number | refused: the ledger is older than its files |
| one number as .rdq and .sqs; .rdq above the last of version 1, .sqs not above it | refused |

After an orderly stop nothing is scanned. Else the open file is, and what was being moved: a COMMIT
follows the sync of what it names, so in no other file is there anything that the ledger does not know.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from bottomless.guards import guard
from bottomless_server.queues.core.states import FileState


class NamedFile(NamedTuple):
    """A message file by its name."""

    number: int
    is_version_1: bool = False

    @property
    def name(self) -> str:
        return f"{self.number}.{'rdq' if self.is_version_1 else 'sqs'}"


class KnownFile(NamedTuple):
    """A message file by its row."""

    number: int
    size: int
    valid: int
    state: FileState


class V1Files(StrEnum):
    """What a start does about files of version 1, by the setting BOTTOMLESS_QUEUES_V1_FILES."""

    READ = "read"
    """They are read where they lie; each goes when it is empty, or is written anew when much of it is."""
    MIGRATE = "migrate"
    """All of them are written anew before the service begins."""
    REFUSE = "refuse"
    """The service does not begin while there are any."""


_NAMED_COUNT: Final = 10
"""Files that a refusal names."""


class Refused(Exception):
    """A start would lose messages, or take what is not its own: an operator has to look first."""


class OldFiles(Refused):
    """There are files of version 1, and the setting allows none. Nothing is wrong with them."""


@dataclass(frozen=True, slots=True)
class StartPlan:
    """What a start does. Numbers are of files, in order."""

    last_v1_file: int | None
    removals: tuple[NamedFile, ...] = ()
    """Files that are removed; those with a row lose it afterwards."""
    rows_that_go: tuple[int, ...] = ()
    cuts: tuple[NamedFile, ...] = ()
    """Files that are cut to the size in their row."""
    short: tuple[NamedFile, ...] = ()
    """Files that are shorter than their row, or missing."""
    scans: tuple[NamedFile, ...] = ()


def check_v1_files(names: Iterable[str], setting: V1Files) -> None:
    """Refuse a start where there are files of version 1 and none may be.

    Raises:
        OldFiles: it names them, and says what to do.
    """
    if setting is not V1Files.REFUSE:
        return
    there = sorted(
        (name for name in names if name.endswith(".rdq")), key=lambda name: (len(name), name)
    )
    if there:
        more = f" and {len(there) - _NAMED_COUNT} more" if len(there) > _NAMED_COUNT else ""
        raise OldFiles(
            f"there are message files of version 1, which this setting does not allow: "
            f"{', '.join(there[:_NAMED_COUNT])}{more}; run `bottomless queue-store migrate`, or start "
            "once with BOTTOMLESS_QUEUES_V1_FILES=migrate"
        )


def plan_start(
    rows: Sequence[KnownFile],
    found: Mapping[NamedFile, int],
    *,
    next_file: int,
    last_v1_file: int | None,
    is_clean: bool,
) -> StartPlan:
    """Plan a start. `found` has the size of each file that is there.

    Raises:
        Refused: what is there cannot be what the ledger was left with.
    """
    last_v1_file = _boundary(found, last_v1_file)
    known = {row.number: row for row in rows}
    stray = sorted(one for one in found if one.number not in known)
    check_age(stray, next_file)
    check_any([row.number for row in rows if row.valid], {one.number for one in found})
    removals, rows_that_go, cuts, short, scans = list(stray), list[int](), [], [], []
    for row in rows:
        file = NamedFile(row.number, last_v1_file is not None and row.number <= last_v1_file)
        size = found.get(file)
        if row.state is FileState.MOVING and not row.valid:
            rows_that_go.append(row.number)
            if size is not None:
                removals.append(file)
            continue
        if row.state in (FileState.DOOMED, FileState.DAMAGED):
            continue
        if size is None or size < row.size:
            short.append(file)
        elif size > row.size:
            cuts.append(file)
        # In a file of version 1 nothing is ever written; and nothing in it could be told from damage.
        is_written = row.state in (FileState.OPEN, FileState.MOVING) and not file.is_version_1
        if size is not None and is_written and not is_clean:
            scans.append(file)
    return StartPlan(
        last_v1_file,
        tuple(sorted(removals)),
        tuple(rows_that_go),
        tuple(cuts),
        tuple(short),
        tuple(scans),
    )


@guard("a ledger that is older than its files is refused")
def check_age(stray: Sequence[NamedFile], next_file: int) -> None:
    """Refuse files without a row, but for the one that a round made which was not committed.

    Raises:
        Refused: the ledger was put back from a back-up, say: it would lose what is in them.
    """
    older = [one.name for one in stray if one.number != next_file or one.is_version_1]
    if older:
        raise Refused(f"the ledger is older than its files: it does not know {', '.join(older)}")


@guard("message files of which none is there are elsewhere")
def check_any(needed: Sequence[int], found: set[int]) -> None:
    """Refuse a directory that has none of several files that are needed: a disk that breaks does not take
    all files and leave the ledger beside them. Each message would be called damaged, for good.

    Raises:
        Refused: they are elsewhere.
    """
    if len(needed) > 1 and not found & set(needed):
        raise Refused(
            f"none of the {len(needed)} message files that are needed is there: a mount or a link may be gone"
        )


@guard("files of version 1 are up to a boundary")
def _boundary(found: Mapping[NamedFile, int], last_v1_file: int | None) -> int | None:
    """The highest number of version 1; that there is none is believed only where none lies.

    Raises:
        Refused: a file lies on the wrong side of it.
    """
    old = sorted(one.number for one in found if one.is_version_1)
    new = sorted(one.number for one in found if not one.is_version_1)
    both = sorted(set(old) & set(new))
    if both:
        raise Refused(f"there are two files of one number: {both[0]}.rdq and {both[0]}.sqs")
    if not old and last_v1_file is None:
        return None
    last = old[-1] if last_v1_file is None else last_v1_file
    wrong = [f"{number}.rdq" for number in old if number > last]
    wrong += [f"{number}.sqs" for number in new if number <= last]
    if wrong:
        raise Refused(
            f"{', '.join(wrong)} cannot be: files up to {last} are of version 1, all others are not"
        )
    return last
