"""All services in one process: one directory, one port, one contract."""

from pathlib import Path

import pytest
from support.server import AllInOne

from bottomless_server.allinone import locked
from bottomless_server.runtime.base.cannot_start import CannotStart


def test_a_directory_belongs_to_one_process(tmp_path: Path) -> None:
    with locked(tmp_path / "data"):
        second = locked(tmp_path / "data")
        with pytest.raises(CannotStart, match="another process uses the data directory"):
            second.__enter__()
    with locked(tmp_path / "data"):
        pass


def test_a_directory_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    held = locked(tmp_path / "file" / "data")
    with pytest.raises(CannotStart, match="cannot be used: Not a directory"):
        held.__enter__()


def test_it_looks_like_one_service(tmp_path: Path) -> None:
    with AllInOne(tmp_path / "data") as server:
        [named] = [line for line in server.log().splitlines() if "] data directory " in line]
        assert f"directory={str(tmp_path / 'data')!r}" in named
        with server.client() as client:
            report = client.get("/readyz", params={"verbose": "1"}).json()
            refused = client.delete("/v1/streams/s/records")
            paths = client.get("/openapi.json").json()["paths"]
            assert client.get("/v1").status_code == client.get("/internal/v1/commits").status_code
        second = AllInOne(tmp_path / "data")
        with pytest.raises(AssertionError, match="another process uses the data directory"):
            second.start()
        second.kill()
        assert server.stop() == 0

    assert report["status"] == "ready"
    assert set(report["services"]) == {"manifest", "ingest", "uploader", "reader", "queues"}
    assert refused.status_code == 405
    assert set(refused.headers["allow"].split(", ")) == {"GET", "POST"}
    shapes = {path.replace("{s}", "{name}"): set(paths[path]) for path in paths}
    assert len(shapes) == len(paths)
    assert {"get", "post"} <= shapes["/v1/streams/{name}/records"]
    assert list((tmp_path / "data" / "run").iterdir()) == []
