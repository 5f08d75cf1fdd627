"""Logs go to stderr, one line an event, whoever writes them."""

import json
import subprocess
import sys

PROGRAM = """
import logging, stamina, structlog
from bottomless.errors import Code
from bottomless_server.runtime.observe.telemetry import configure_logs
configure_logs("info", as_json={as_json})
log = structlog.get_logger(__name__)
log.debug("unheard")
log.info("an event", stream="a\\nb", code=Code.OVERLOADED)
for attempt in stamina.retry_context(on=ValueError, attempts=2, wait_initial=0):
    with attempt:
        if attempt.num == 1:
            raise ValueError("retries are told by who retries")
logging.getLogger("library").info("unheard")
logging.getLogger("library").warning("from a library: %s", 1)
try:
    secret = "hid" + "den"
    1 / 0
except ZeroDivisionError:
    log.exception("a bug")
"""


def logged(*, as_json: bool) -> str:
    program = PROGRAM.format(as_json=as_json)
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout == ""
    assert "unheard" not in ran.stderr
    assert "hidden" not in ran.stderr
    return ran.stderr


def test_text_is_for_people_and_a_value_starts_no_line() -> None:
    text = logged(as_json=False)
    assert "stream='a\\nb'" in text
    assert "overloaded" in text
    assert "OVERLOADED" not in text
    assert "retr" not in text
    assert "from a library: 1" in text
    assert "ZeroDivisionError" in text


def test_json_is_one_object_a_line() -> None:
    events = [json.loads(line) for line in logged(as_json=True).splitlines()]
    assert [event["event"] for event in events] == ["an event", "from a library: 1", "a bug"]
    assert [event["level"] for event in events] == ["info", "warning", "error"]
    assert (events[0]["stream"], events[0]["code"]) == ("a\nb", "overloaded")
    assert events[2]["exception"][0]["exc_type"] == "ZeroDivisionError"
