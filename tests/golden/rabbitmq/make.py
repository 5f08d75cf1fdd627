"""Let a RabbitMQ from Debian's packages write segments, for `unit/formats/test_osiris.py`.

    PYTHONPATH=tests:. python tests/golden/rabbitmq/make.py DIRECTORY

It writes there the segments of a stream as the node left them. They are committed, and made again
only for another RabbitMQ; what was published is in `support/rabbitmq.py`.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from support.rabbitmq import Publishing, publish_everything

from bench.servers.rabbitmq import running_rabbitmq

SEGMENT_SIZE = 30_000


def stream_directory(node: Path, stream: str) -> Path:
    """Where a node keeps a stream: a directory named after host, stream and time."""
    [found] = [path for path in node.rglob("stream/*") if f"_{stream}_" in path.name]
    return found


def main(directory: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, running_rabbitmq(Path(scratch)) as rabbit:
        publishing = Publishing(rabbit.connection(), "golden")
        publishing.begin(SEGMENT_SIZE)
        publish_everything(publishing)
        found = stream_directory(Path(scratch), "golden")
        directory.mkdir(parents=True, exist_ok=True)
        for path in sorted(found.glob("*.segment")):
            shutil.copyfile(path, directory / path.name)
            print(path.name, path.stat().st_size)
        print(rabbit.version, found.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
