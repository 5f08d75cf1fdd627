"""An S3 server inside the test process: quick, keeps everything in memory."""

from collections.abc import Iterator
from contextlib import contextmanager

from support.s3 import BUCKET, S3Server, s3_client


@contextmanager
def running_moto() -> Iterator[S3Server]:
    """It runs in a thread, so it dies with the tests."""
    # Not at the top of the file, where each worker would load it to collect tests.
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        running = S3Server(f"http://{host}:{port}")
        with s3_client(running) as client:
            client.create_bucket(Bucket=BUCKET)
        yield running
    finally:
        server.stop()
