"""What the log says of failures: what only has to be waited for once, and once that it goes on."""

from typing import Any

from structlog.testing import capture_logs

from bottomless.errors import Code, Corrupt, Unavailable
from bottomless.model.names import StreamId
from bottomless_server.uploader.failures import Failures, Retries
from bottomless_server.uploader.settings import UploaderSettings

STREAM = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")
AT_ONCE = UploaderSettings(
    uploader_retry_initial_seconds=0.001,
    uploader_retry_max_seconds=0.001,
    uploader_retry_jitter_seconds=0,
    uploader_damage_retry_seconds=0.001,
)


async def said_of(*errors: Exception, failures: Failures | None = None) -> list[dict[str, Any]]:
    """What is logged of a step that fails with these, one after the other, and is done then."""
    left = list(errors)
    kept = Failures(STREAM) if failures is None else failures

    async def step() -> None:
        if left:
            raise left.pop(0)

    with capture_logs() as logs:
        await Retries(AT_ONCE).forever(kept, "a step", step)
    return [dict(one) for one in logs]


def away(code: Code = Code.PEER_UNAVAILABLE) -> Unavailable:
    """Somebody does not answer."""
    return Unavailable("it does not answer", code=code)


async def test_what_is_waited_for_is_told_once_and_once_when_it_goes_on() -> None:
    waits, goes_on = await said_of(*(away() for _ in range(7)))
    assert (waits["event"], waits["log_level"]) == ("uploading waits", "warning")
    assert (waits["what"], waits["error"]) == ("a step", "it does not answer")
    assert (goes_on["event"], goes_on["attempt_count"]) == ("uploading goes on", 7)


async def test_another_reason_to_wait_is_told() -> None:
    said = await said_of(away(), away(), away(Code.NOT_OWNER), away(Code.NOT_OWNER))
    assert [one["code"] for one in said] == [
        Code.PEER_UNAVAILABLE,
        Code.NOT_OWNER,
        Code.NOT_OWNER,
    ]


async def test_what_somebody_has_to_mend_is_told_each_time() -> None:
    said = await said_of(Corrupt("a checksum is wrong"), Corrupt("a checksum is wrong"))
    events = ["uploading failed", "uploading failed", "uploading goes on"]
    assert [one["event"] for one in said] == events


async def test_of_a_node_its_address_is_told() -> None:
    waits, _ = await said_of(away(), failures=Failures(url="http://there"))
    assert waits["url"] == "http://there"


async def test_nothing_is_told_of_what_does_not_fail() -> None:
    assert await said_of() == []
