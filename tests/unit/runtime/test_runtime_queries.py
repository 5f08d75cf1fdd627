"""Queries are read strictly, and faults name the parameter."""

from typing import Any

import pytest
from support.asgi import scope_of

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless_server.runtime.http.app import Repeated, boolean, choice, integer, parse_query, text

PARSERS = {
    "limit": integer(1, 100),
    "mode": choice("clamp", "error"),
    "offset": text,
    "deep": boolean,
}


def parse(query: str) -> dict[str, Any]:
    return parse_query(scope_of(query=query), PARSERS)


def refusal(query: str) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(query)
    return caught.value


def test_only_what_is_given_is_there() -> None:
    assert parse("") == {}
    assert parse("limit=1&mode=error&offset=timestamp%3A1&deep=true&") == {
        "limit": 1,
        "mode": "error",
        "offset": "timestamp:1",
        "deep": True,
    }
    assert parse("offset=a+b%2Bc") == {"offset": "a b+c"}


def test_unknown_and_duplicate_parameters_are_named() -> None:
    unknown = refusal("ofset=1")
    assert (unknown.code, unknown.faults[0].parameter) == (Code.UNKNOWN_PARAMETER, "ofset")
    duplicate = refusal("offset=1&offset=1")
    assert (duplicate.code, duplicate.faults[0].parameter) == (Code.DUPLICATE_PARAMETER, "offset")
    assert refusal("%3Cscript%3E=1").faults[0].parameter is None


@pytest.mark.parametrize(
    "value", ["", "0", "101", "01", "+1", "1_0", "1.0", " 1", "\u0661", "9" * 5_000]
)
def test_integers_are_plain_and_in_range(value: str) -> None:
    error = refusal(f"limit={value}")
    sentence = "must be an integer from 1 to 100"
    assert error.code is Code.BAD_PARAMETER
    assert error.faults == (Fault(Code.BAD_PARAMETER, sentence, parameter="limit"),)


@pytest.mark.parametrize("query", ["mode=CLAMP", "deep=1", "offset=", "offset=%ff", "%ff=1"])
def test_other_faults_are_bad_parameters_or_unknown(query: str) -> None:
    assert refusal(query).code is Code.BAD_PARAMETER


def test_a_parser_keeps_its_own_code() -> None:
    def parse_spec(_: str) -> Any:
        raise InvalidRequest("no such spec", code=Code.BAD_OFFSET_SPEC, facts={"a": 1})

    with pytest.raises(InvalidRequest) as caught:
        parse_query(scope_of(query="offset=x"), {"offset": parse_spec})
    assert caught.value.code is Code.BAD_OFFSET_SPEC
    assert caught.value.faults[0].parameter == "offset"
    assert caught.value.facts == {"a": 1}


def test_a_parameter_that_may_be_repeated_keeps_its_order_and_has_a_bound() -> None:
    parsers = {"filter": Repeated(str, 2)}

    assert parse_query(scope_of(query="filter=b&filter=&"), parsers) == {"filter": ("b", "")}
    assert parse_query(scope_of(query=""), parsers) == {}
    with pytest.raises(InvalidRequest) as raised:
        parse_query(scope_of(query="filter=a&filter=b&filter=c"), parsers)
    (fault,) = raised.value.faults
    assert (fault.code, fault.parameter) == ("bad-parameter", "filter")
