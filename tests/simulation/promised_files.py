"""The staged files that a node has promised to have on its disk: no loss of power takes one.

A writer was told so for each batch, and a commit that was begun by a plan is finished by nothing
else. The runs did not see that such files went: where nothing is stored of a commit its batches may
be gone for many reasons, so that it is staged anew, and hardly ever was a commit cut off between
two of its parts by a loss of power. So now each file is looked for after each of those.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from support.power_loss import PowerLossDisk

from bottomless.model.names import StreamId
from bottomless_server.ingest.producers.commit_plan import CommitPlan, StagedBatch
from bottomless_server.ingest.staged.files import StagedFiles

_PROMISED: Final[set[Path]] = set()
"""Of all nodes of a run; who asks to have one removed is promised nothing any more."""


@contextmanager
def noting_staged_files() -> Iterator[None]:
    """Note which files are written and which are removed, while one simulation runs."""
    write, save_plan, remove = StagedFiles.write, StagedFiles.save_plan, StagedFiles.remove

    def noted_write(
        files: StagedFiles, stream_id: StreamId, batch: StagedBatch, data: Sequence[Any]
    ) -> None:
        write(files, stream_id, batch, data)
        _PROMISED.add(files.batch_path(stream_id, batch))

    def noted_save_plan(files: StagedFiles, stream_id: StreamId, plan: CommitPlan) -> None:
        save_plan(files, stream_id, plan)
        _PROMISED.add(files.plan_path(stream_id, plan.producer_id))

    def noted_remove(
        files: StagedFiles, doomed: Sequence[tuple[Path, int]]
    ) -> list[tuple[Path, int]]:
        _PROMISED.difference_update(path for path, _ in doomed)
        return remove(files, doomed)

    changed = {"write": noted_write, "save_plan": noted_save_plan, "remove": noted_remove}
    for name, value in changed.items():
        setattr(StagedFiles, name, value)
    try:
        yield
    finally:
        _PROMISED.clear()
        for name, real in (("write", write), ("save_plan", save_plan), ("remove", remove)):
            setattr(StagedFiles, name, real)


def missing_files(disk: PowerLossDisk, data_dir: Path) -> list[str]:
    """Names of the files below a data directory that were promised and are not on its disk."""
    mine = (path for path in _PROMISED if path.is_relative_to(data_dir))
    return sorted(path.name for path in mine if path.name not in disk.names(path.parent))
