"""Places of jobs: a file is there whole or as it was, whoever fails in the middle of it."""

from contextlib import suppress
from pathlib import Path

import pyarrow.fs as arrow_fs
import pytest

from bottomless.errors import Unavailable
from bottomless.spark.jobs import places
from bottomless.spark.jobs.places import Place


@pytest.fixture(params=["directory", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A directory, and the same as a store that Arrow writes to."""
    if request.param == "store":
        files = arrow_fs.SubTreeFileSystem(str(tmp_path), arrow_fs.LocalFileSystem())
        monkeypatch.setattr(Place, "open", lambda self: (files, Path(self.text).name))
    return Place(str(tmp_path))


def test_what_was_written_is_read_and_named(place: Place, tmp_path: Path) -> None:
    places.write(place / "one", b"1")
    places.write(place / "one", b"22")
    assert places.read(place / "one") == b"22"
    assert places.read(place / "two") is None
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_who_fails_in_the_middle_takes_nothing_from_another_attempt(
    place: Place, tmp_path: Path
) -> None:
    with suppress(RuntimeError), places.whole_file(place / "one") as late:
        late.write(b"half")
        places.write(place / "one", b"whole")
        raise RuntimeError
    assert places.read(place / "one") == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_a_place_that_refuses_is_told_of_without_its_name(tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    with pytest.raises(Unavailable, match="credentials") as caught:
        places.names(Place(str(tmp_path / "secret")))
    assert "secret" not in str(caught.value)
