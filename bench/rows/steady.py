"""A producer that sends one record after the other, and knows how long it waited for each."""

import threading
import time
from types import TracebackType
from typing import Any, Final, Self

import httpx

from bench.figures import quantile

WAIT_SECONDS: Final = 120.0
STEP_SECONDS: Final = 0.005
_REFUSED_SECONDS: Final = 0.02
"""Before it sends again what was refused: less than answers ask for, so that it is not what is measured."""
_VALUE: Final = "x" * 100


class Steady:
    """Sends numbered records to one node, each again until it is acknowledged, in a thread of its own."""

    def __init__(self, url: str, stream: str, pause: float = 0.0) -> None:
        """It waits for so many seconds between two records."""
        self.refusals = 0
        self._path = f"{url}/v1/streams/{stream}/records"
        self._pause = pause
        self._name = f"steady-{time.monotonic_ns()}"
        self._answers: list[tuple[float, float]] = []
        """When each record was acknowledged, and for how many seconds it had waited."""
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(WAIT_SECONDS)

    def await_answer(self) -> None:
        """Return when two more records were acknowledged, of which the second was sent after this call.

        Raises:
            RuntimeError: none is, or the producer met what it cannot send again.
        """
        wanted, deadline = len(self._answers) + 2, time.monotonic() + WAIT_SECONDS
        while len(self._answers) < wanted:
            if self._failure is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the producer gets no answer: {self._failure}")
            # Its thread has nobody to tell.
            time.sleep(STEP_SECONDS)

    def longest_since(self, began: float) -> float:
        """The seconds that one of the records waited which were acknowledged since then, at most."""
        return max((waited for at, waited in list(self._answers) if at >= began), default=0.0)

    def p99_since(self, began: float) -> float:
        """The seconds that 99 of 100 of them did not exceed."""
        return quantile(sorted(waited for at, waited in list(self._answers) if at >= began), 0.99)

    def p50_since(self, began: float) -> float:
        """The seconds that half of them did not exceed."""
        return quantile(sorted(waited for at, waited in list(self._answers) if at >= began), 0.5)

    def _run(self) -> None:
        try:
            with httpx.Client(timeout=WAIT_SECONDS) as client:
                number = 0
                while not self._stop.wait(self._pause):
                    began = time.monotonic()
                    while not self._sent(client, number):
                        self.refusals += 1
                        if self._stop.wait(_REFUSED_SECONDS):
                            return
                    number += 1
                    now = time.monotonic()
                    self._answers.append((now, now - began))
        except Exception as error:  # noqa: BLE001
            self._failure = error

    def _sent(self, client: httpx.Client, number: int) -> bool:
        headers = {"producer-id": self._name, "producer-seq": str(number)}
        body = {"records": [{"value": _VALUE}]}
        answer = client.post(self._path, json=body, headers=headers)
        if answer.status_code in (httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.GATEWAY_TIMEOUT):
            return False
        answer.raise_for_status()
        return True


def once_done(url: str, accepted: httpx.Response) -> dict[str, Any]:
    """Return the result of an operation that was accepted, when it has succeeded.

    Raises:
        RuntimeError: it failed, or takes too long.
    """
    if not accepted.is_success:
        raise RuntimeError(f"it is refused: {accepted.text}")
    path = f"{url}/v1/operations/{accepted.json()['operation_id']}"
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        found = httpx.get(path, timeout=60).raise_for_status().json()
        if found["state"] == "succeeded":
            result: dict[str, Any] = found["result"]
            return result
        if found["state"] == "failed" or time.monotonic() > deadline:
            raise RuntimeError(f"it does not succeed: {found}")
        # Nothing of the API waits for an operation.
        time.sleep(STEP_SECONDS)
