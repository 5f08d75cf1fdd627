"""The all-in-one: `bottomless serve` on a directory."""

from collections.abc import Mapping
from pathlib import Path

from support.processes import STOP_SECONDS, Process
from support.stored import Stored, StoredFiles

__all__ = ["STOP_SECONDS", "AllInOne"]


class AllInOne(Process):
    """All four services in one process, with everything that they keep in one directory."""

    names: tuple[str, ...] = ("bottomless",)

    def __init__(
        self, data_dir: Path, settings: Mapping[str, str] | None = None, port: int = 0
    ) -> None:
        log_path = data_dir.parent / f"{data_dir.name}.log"
        super().__init__(["--data-dir", str(data_dir)], log_path, settings, port)
        self.data_dir = data_dir
        self.ingest_dir = data_dir / "ingest"
        self.stored: Stored = StoredFiles(self.objects)

    @property
    def objects(self) -> Path:
        return self.data_dir / "objects"

    def kill(self, *names: str) -> None:
        assert set(names) <= set(self.names)
        super().kill()

    def spawn(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        super().spawn()
