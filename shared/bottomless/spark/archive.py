"""The package as one file for `--py-files`: for executors that have nothing of ours.

They need Python 3.11, pyarrow, numpy, and for S3 botocore; Spark brings its own files. numpy then
computes the checksums for which other machines have a compiled library, more slowly.

    python -m bottomless.spark.archive bottomless.zip
    spark-submit --py-files bottomless.zip job.py
"""

import sys
import zipfile
from pathlib import Path
from typing import Final

import bottomless

_PACKAGES: Final = ("bottomless", "pyspark_bottomless")
_MOMENT: Final = (1980, 1, 1, 0, 0, 0)
"""The time of every member, so that the same files are the same archive."""


def write_archive(path: Path) -> None:
    """Write the archive, replacing one that is there."""
    root = Path(bottomless.__file__).parents[1]
    files = sorted(file for name in _PACKAGES for file in (root / name).rglob("*.py"))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            member = zipfile.ZipInfo(str(file.relative_to(root)), _MOMENT)
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, file.read_bytes())


if __name__ == "__main__":
    write_archive(Path(sys.argv[1]))
