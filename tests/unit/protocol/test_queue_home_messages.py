"""What manifest says of homes of queues comes back as it was, and nonsense is its fault."""

from typing import Any

import pytest
from pydantic import ValidationError

from bottomless.errors import InvalidRequest, Unavailable
from bottomless.model.names import NodeId
from bottomless.model.queue_home import QueueHome
from bottomless_server.protocol.queue_homes import (
    HomeAskedBody,
    HomeSaid,
    decode_home_said,
    encode_home_asked,
    encode_home_said,
    home_path,
    home_tenant_in,
)
from unit.protocol.wire import received, sent

A, B = NodeId("a" * 32), NodeId("b" * 32)
HOME = QueueHome("acme", 3, A, "a:1", noted=True, generation=0)


@pytest.mark.parametrize("url", ["a:1", None])
def test_a_home_comes_back_as_it_was_said(url: str | None) -> None:
    said = decode_home_said(received(sent(encode_home_said(HOME._replace(url=url)))))
    assert said == HomeSaid(3, A, url)


@pytest.mark.parametrize("expected", [None, B])
def test_what_a_node_asks_for_comes_back_as_it_was(expected: NodeId | None) -> None:
    body = HomeAskedBody.model_validate(received(sent(encode_home_asked(A, "a:1", expected))))
    assert (body.node_id, body.url, body.expect_home) == (A, "a:1", expected)


@pytest.mark.parametrize("change", [{"node_id": "x"}, {"url": ""}, {"expect_home": 1}, {"more": 1}])
def test_a_question_of_another_form_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        HomeAskedBody.model_validate({**encode_home_asked(A, "a:1", None), **change})


@pytest.mark.parametrize(
    "body", [None, [], {}, 7, {"term": "1", "node_id": A, "url": None}, {"term": 1, "node_id": "x"}]
)
def test_nonsense_is_manifests_fault(body: Any) -> None:
    with pytest.raises(Unavailable):
        decode_home_said(body)


def test_paths_say_whose_home_is_asked_for() -> None:
    assert home_path("acme.eu") == "/internal/v1/queue-homes/acme.eu"
    assert home_tenant_in({"tenant": "acme.eu"}) == "acme.eu"
    with pytest.raises(InvalidRequest):
        home_tenant_in({"tenant": "_system"})
