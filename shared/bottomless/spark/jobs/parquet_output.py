"""An export as a directory of Parquet files, for readers that know no table format.

    part-A-B.parquet            the offsets A to B
    _bottomless/plan-N.json     the N-th round: which files it has; written before they are

Names follow from the plan, and a file of a given name always has the same rows: written again, it
replaces an equal one. So after a crash at any step each row is there at most once:

    nothing of the round        it is planned anew
    its plan                    the next run writes the files that are missing, by this plan,
                                whatever the stream's fragments are by then
    its plan and some files     the same
    its plan and all files      the round is complete: there is no other mark of that

A reader sees files of a round as they are written. In a directory a plan is put if absent: if two
exports run at once, both may write the files of a plan, which are the same, but only one plans the
next round. A store that Arrow writes to cannot do that: there let only one run.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from bottomless.errors import InvalidRequest
from bottomless.spark.jobs import places
from bottomless.spark.jobs.file_writer import Written
from bottomless.spark.jobs.outputs import Cut, Round, Subject, moved_on
from bottomless.spark.jobs.places import Place
from bottomless.spark.snapshot import check_same_stream

VERSION: Final = 1


class ParquetOutput:
    """An output of an export that is a directory of Parquet files."""

    def __init__(self, place: Place, subject: Subject, schema: pa.Schema) -> None:
        self.place = place
        self.stored = schema
        self._subject = subject
        self._log = place / "_bottomless"
        self._number = 0

    def begun(self) -> Round | None:
        """Read the newest plan; None if nothing was exported yet.

        Raises:
            WrongOffset: `stream-replaced`, the output is of another stream of this name.
            InvalidRequest: the output has other columns, files of others, or is of a newer
                version.
        """
        plans = [name for name in places.names(self._log) if name.startswith("plan-")]
        if not plans:
            if any(name.endswith(".parquet") for name in places.names(self.place)):
                raise InvalidRequest("there are Parquet files that no export has written")
            return None
        self._number = int(plans[-1].removeprefix("plan-").removesuffix(".json")) + 1
        members = json.loads(places.read(self._log / plans[-1]) or b"")
        if members["v"] != VERSION or members["stream"] != self._subject.name:
            raise InvalidRequest("the output is of another stream, or of a newer version")
        check_same_stream(members["stream_id"], self._subject.stream_id)
        if members["columns"] != self._columns():
            raise InvalidRequest("the output has other columns; name another one")
        cuts = tuple((first, end) for first, end in members["files"])
        return Round(members["first_offset"], members["next_offset"], cuts)

    def plan(self, planned: Round) -> None:
        """Write the plan of a round, in a directory only if no other export has written it.

        Raises:
            WrongOffset: another export has planned this round.
        """
        members = {
            "v": VERSION,
            "stream": self._subject.name,
            "stream_id": self._subject.stream_id,
            "first_offset": planned.first_offset,
            "next_offset": planned.next_offset,
            "columns": self._columns(),
            "files": planned.cuts,
        }
        target = self._log / f"plan-{self._number:010d}.json"
        if not target.is_local:
            places.write(target, json.dumps(members).encode())
        elif not _put_if_absent(Path(target.open()[1]), json.dumps(members).encode()):
            raise moved_on()
        self._number += 1

    def file_name(self, cut: Cut) -> str:
        """Make the name of a file in the directory; it follows from its offsets."""
        return f"part-{cut[0]:020d}-{cut[1]:020d}.parquet"

    def commit(self, planned: Round, files: Sequence[Written]) -> None:
        """Do nothing: a round is complete when all of its files are there."""
        # Files have their names already, which is all.
        assert len(files) == len(planned.cuts)

    def _columns(self) -> list[Any]:
        return [[field.name, str(field.type)] for field in self.stored]


def _put_if_absent(path: Path, data: bytes) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{places.a_name()}.draft")
    draft.write_bytes(data)
    places.sync(draft)
    try:
        # A link, since a rename would replace what is there.
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()
    places.sync(path.parent)
    return True
