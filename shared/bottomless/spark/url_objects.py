"""Objects read with presigned URLs: bytes come from the store, the permission from the reader.

A worker needs no credentials for it. It asks the reader for the URLs of its own share only, some at
a time, and again when one has expired: a job may take longer than a URL lives. No URL travels
through Spark or appears in an error.
"""

import re
import threading
from functools import lru_cache
from typing import Final

import urllib3

from bottomless.drives.base import DriveRefused, DriveUnavailable, ObjectMissing
from bottomless.drives.s3_answers import of_answer
from bottomless.errors import Code, NotFound, WrongOffset
from bottomless.spark.plan import Stored
from bottomless.spark.service import Source, ask_json
from bottomless.spark.store import (
    CONNECT_SECONDS,
    CONNECTION_COUNT_MAX,
    READ_SECONDS,
    Counts,
    check_ca,
    check_range,
    patiently,
)

URL_COUNT: Final = 64
"""URLs in one request: some ten milliseconds of signing for the reader."""
_PROBLEM_SIZE_MAX: Final = 64 * 1024
_ERROR_CODE: Final = re.compile(rb"<Code>([A-Za-z0-9.]{1,64})</Code>")


class UrlObjects:
    """Objects of one share, which ends before `next_offset`."""

    def __init__(self, source: Source, next_offset: int, ca: str | None, counts: Counts) -> None:
        self._source = source
        self._next_offset = next_offset
        self._ca = ca
        self._counts = counts
        self._urls: dict[str, str] = {}
        # Ranges are read by several threads; the URLs are asked for by one of them.
        self._asking = threading.Lock()

    def read(self, fragment: Stored, start: int, size: int) -> bytes:
        """Read `size` bytes of a fragment's object from byte `start`.

        Fewer where it ends before.

        Raises:
            ObjectMissing: there is no such object (any more).
            DriveUnavailable: the store did not give them, however often it was asked.
            DriveRefused: the store refuses a URL that was just made.
        """
        known = self._urls.get(fragment.fragment_id)
        if known is not None:
            try:
                return self._read(known, start, size)
            except DriveRefused:
                # Most likely it has run out; clocks differ, so the store's word counts and
                # not the time that stands beside the URL. A fresh one is refused for good.
                pass
        return self._read(self._fresh_url(fragment, known), start, size)

    def _fresh_url(self, fragment: Stored, refused: str | None) -> str:
        with self._asking:
            other = self._urls.get(fragment.fragment_id)
            return self.ask_url(fragment) if other in {None, refused} else str(other)

    def _read(self, url: str, start: int, size: int) -> bytes:
        data = patiently(lambda: self._get(url, start, size))
        self._counts.add_object_read(len(data), presigned=True)
        return data

    def ask_url(self, fragment: Stored) -> str:
        """Ask the service for an address from which the fragment can be read.

        Raises:
            NotFound: `data-missing`, the manifest does not name this fragment any more.
            WrongOffset: `stream-replaced`, another stream has taken the name.
            StoreError: what else the service answers.
        """
        query = {
            # By its last offset, so that a floor inside the fragment does not matter.
            "from_offset": str(fragment.next_offset - 1),
            "to_offset": str(max(fragment.next_offset, self._next_offset)),
            "limit": str(URL_COUNT),
            "urls": "presigned",
        }
        self._counts.url_requests += 1
        page = ask_json(self._source, "fragments", query)
        if page["stream_id"] != self._source.stream_id:
            raise WrongOffset("another stream has taken the name", code=Code.STREAM_REPLACED)
        self._urls = {item["id"]: item["url"] for item in page["fragments"] if "url" in item}
        if fragment.fragment_id not in self._urls:
            raise NotFound(
                "the manifest does not name this fragment any more",
                code=Code.DATA_MISSING,
                facts={"fragment_id": fragment.fragment_id},
            )
        return self._urls[fragment.fragment_id]

    def _get(self, url: str, start: int, size: int) -> bytes:
        wanted = {"Range": f"bytes={start}-{start + size - 1}"}
        try:
            answer = pool_of(self._ca).request(
                "GET", url, headers=wanted, preload_content=False, redirect=False, retries=False
            )
            try:
                if answer.status == 206:
                    length = int(answer.headers.get("Content-Length", size))
                    check_range(answer.headers.get("Content-Range"), start, length, size)
                    return answer.read()
                problem = answer.read(_PROBLEM_SIZE_MAX)
            finally:
                # What was read to its end has given its connection back already.
                answer.close()
        except (urllib3.exceptions.HTTPError, OSError):
            # Without the cause: the library's errors show the URL.
            raise DriveUnavailable("the object store does not answer this worker") from None
        return _no_data(answer.status, problem)


def _no_data(status: int, problem: bytes) -> bytes:
    if status == 416:
        return b""
    code = _ERROR_CODE.search(problem)
    failure = of_answer(code[1].decode() if code else "", status, puts=False)
    if isinstance(failure, ObjectMissing):
        raise ObjectMissing("an object is not there (any more)")
    if isinstance(failure, DriveRefused):
        raise DriveRefused("the object store refuses a presigned URL", facts=failure.facts)
    raise failure


@lru_cache(maxsize=4)
def pool_of(ca: str | None) -> urllib3.PoolManager:
    """Make the connections to stores whose certificates are of `ca`; one pool for each worker."""
    check_ca(ca)
    return urllib3.PoolManager(
        num_pools=4,
        maxsize=CONNECTION_COUNT_MAX,
        timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS),
        ca_certs=ca,
    )
