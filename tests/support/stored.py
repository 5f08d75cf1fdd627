"""Objects where they lie, seen without any code of ours: what a store holds is what is checked."""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from support.s3 import BUCKET, CREDENTIALS, S3Server, s3_client


class Stored(Protocol):
    @property
    def url(self) -> str:
        """As `BOTTOMLESS_STORE_URL` names it."""
        ...

    @property
    def credentials(self) -> Mapping[str, str]:
        """The environment of a process that may use it."""
        ...

    def sizes(self) -> dict[str, int]:
        """Every object by its key, with its size in bytes."""
        ...

    def read(self, object_key: str) -> bytes: ...

    def write(self, object_key: str, data: bytes) -> None:
        """Put an object, as a service would that was held up."""
        ...

    def delete(self, object_key: str) -> None:
        """Delete an object if it is there, as a service would that was held up."""
        ...


class StoredFiles:
    """Objects that are files below a directory."""

    def __init__(self, root: Path) -> None:
        self.url = root.absolute().as_uri()
        self.credentials: Mapping[str, str] = {}
        self._root = root

    def sizes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        # Directories go while it looks: `os.walk` passes over them, where `Path.rglob` raises.
        for directory, _, names in os.walk(self._root):
            for path in (Path(directory, name) for name in names):
                # Who writes moves drafts to their place meanwhile, and others delete.
                with suppress(FileNotFoundError):
                    found[str(path.relative_to(self._root))] = path.stat().st_size
        return found

    def read(self, object_key: str) -> bytes:
        return (self._root / object_key).read_bytes()

    def write(self, object_key: str, data: bytes) -> None:
        path = self._root / object_key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def delete(self, object_key: str) -> None:
        (self._root / object_key).unlink(missing_ok=True)


class StoredInS3:
    """Objects below a prefix of the tests' bucket."""

    def __init__(self, url: str, client: Any, prefix: str) -> None:
        self.url = url
        self.credentials: Mapping[str, str] = CREDENTIALS
        self._client = client
        self._prefix = f"{prefix}/"

    def sizes(self) -> dict[str, int]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=BUCKET, Prefix=self._prefix
        )
        return {
            item["Key"].removeprefix(self._prefix): item["Size"]
            for page in pages
            for item in page.get("Contents", ())
        }

    def read(self, object_key: str) -> bytes:
        reply = self._client.get_object(Bucket=BUCKET, Key=self._prefix + object_key)
        with reply["Body"] as body:
            data: bytes = body.read()
        return data

    def write(self, object_key: str, data: bytes) -> None:
        self._client.put_object(Bucket=BUCKET, Key=self._prefix + object_key, Body=data)

    def delete(self, object_key: str) -> None:
        self._client.delete_object(Bucket=BUCKET, Key=self._prefix + object_key)


@contextmanager
def stored_in_s3(server: S3Server) -> Iterator[StoredInS3]:
    """A prefix of its own, which holds nothing."""
    prefix = f"deployments/{secrets.token_hex(8)}"
    with s3_client(server) as client:
        yield StoredInS3(server.store_url(prefix), client, prefix)
