"""Progress: a bar on stderr if that is a terminal, in bytes or in records."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(title: str, total: int | None, *, bytes_: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar; the block calls what it gets with the amount done.

    Without a terminal do nothing.
    """
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    of_bytes: list[ProgressColumn] = [DownloadColumn(), TransferSpeedColumn()]
    counted = of_bytes if bytes_ else [MofNCompleteColumn()]
    columns = [BarColumn(), *counted, TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)
