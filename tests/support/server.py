"""The all-in-one: `bottomless serve` on a directory."""

from collections.abc import Mapping
from pathlib import Path

import httpx

from bottomless_server.runtime.base.fault_points import EXIT_AT_FAULT_POINT
from bottomless_server.runtime.listener.listeners import internal_url
from support.processes import STOP_SECONDS, Process, internal_client
from support.stored import Stored, StoredFiles

__all__ = ["STOP_SECONDS", "AllInOne"]


class AllInOne(Process):
    """All services in one process, with everything that they keep in one directory."""

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

    def internal(self, name: str) -> httpx.Client:
        """A client of the internal listener of a service."""
        return internal_client(internal_url(None, self.data_dir, name))

    def arm(self, point: str, action: str = "exit", count: int = 1) -> None:
        """Let the process end, or stall, where it passes this point for the `count`th time.

        It needs `BOTTOMLESS_FAULT_POINTS=1` among its settings.
        """
        wanted = {"name": point, "action": action, "count": count}
        with self.internal("manifest") as client:
            client.post("/internal/v1/fault-points", json=wanted).raise_for_status()

    def revive(self) -> None:
        """Wait until it has ended at a point that was armed, and start it again."""
        self.wait_dead_at_fault_point()
        self.start()

    def wait_dead_at_fault_point(self) -> None:
        """Wait until it has ended at a point that was armed."""
        assert self.wait_dead() == EXIT_AT_FAULT_POINT
