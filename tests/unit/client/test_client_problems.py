"""Answers become the errors that their codes stand for."""

import pytest

from bottomless.client.problems import CLASSES, error_from_problem
from bottomless.errors import (
    Code,
    InvalidRequest,
    NotFound,
    OffsetGone,
    Outcome,
    Overloaded,
    StoreError,
    Unavailable,
)


def test_every_code_has_a_class() -> None:
    assert set(CLASSES) == set(Code)


def test_a_problem_keeps_its_facts_and_what_it_says_of_retries() -> None:
    problem = {
        "type": "urn:bottomless:problem:offset-trimmed",
        "title": "Offset trimmed",
        "status": 410,
        "code": "offset-trimmed",
        "detail": "the offset was removed",
        "retryable": False,
        "outcome": "none",
        "request_id": "01J",
        "first_offset": 7,
    }
    error = error_from_problem(410, problem)
    assert isinstance(error, OffsetGone)
    assert (error.code, error.facts) == (Code.OFFSET_TRIMMED, {"first_offset": 7})
    assert (error.message, error.retryable, error.outcome) == (
        "the offset was removed",
        False,
        Outcome.NONE,
    )


def test_faults_come_with_their_places() -> None:
    problem = {
        "code": "validation-failed",
        "errors": [{"pointer": "/records/1", "code": "x", "detail": "y"}],
    }
    error = error_from_problem(422, problem)
    assert [(fault.pointer, fault.detail) for fault in error.faults] == [("/records/1", "y")]


def test_the_text_of_an_error_has_its_reasons_and_facts() -> None:
    problem = {
        "code": "validation-failed",
        "detail": "the configuration is not valid",
        "errors": [
            {"pointer": "/retention/max_age", "code": "value-error", "detail": "no duration"},
            {"parameter": "limit", "code": "bad-parameter", "detail": "no number"},
        ],
        "limit_max": 7,
    }
    error = error_from_problem(422, problem)
    assert str(error) == (
        "the configuration is not valid: limit_max=7; "
        "/retention/max_age: no duration; limit: no number"
    )
    assert len(error.faults) == 2
    assert error.facts == {"limit_max": 7}


def test_the_text_of_an_error_repeats_nothing_and_has_an_end() -> None:
    faults = [{"pointer": f"/records/{n}/value", "detail": "must be a string"} for n in range(9)]
    detail = "the records are not valid at /records/0/value: must be a string"
    error = error_from_problem(
        422, {"code": "validation-failed", "detail": detail, "errors": faults}
    )
    told = [f"/records/{n}/value: must be a string" for n in range(1, 6)]
    assert str(error) == "; ".join([detail, *told, "and 3 more in its faults"])
    assert len(error.faults) == 9


def test_a_wait_is_passed_on() -> None:
    error = error_from_problem(429, {"code": "overloaded"}, retry_after="3")
    assert isinstance(error, Overloaded)
    assert (error.retry_after_seconds, error.retryable) == (3.0, True)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, InvalidRequest), (404, NotFound), (429, Overloaded), (503, Unavailable)],
)
@pytest.mark.parametrize("problem", [None, "<html>", {"code": "of-a-newer-server"}])
def test_without_a_known_code_the_status_decides(
    status: int, kind: type[StoreError], problem: object
) -> None:
    assert type(error_from_problem(status, problem)) is kind
