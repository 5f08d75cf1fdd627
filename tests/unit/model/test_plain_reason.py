"""What users read where the library that checks values has refused one."""

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from bottomless.model.plain_reason import plain_reason


class Inner(BaseModel):
    x: int = 0


class Body(BaseModel):
    count: Annotated[int, Field(ge=1, le=9)] = 1
    ratio: float = 0.5
    name: Annotated[str, Field(max_length=3)] = ""
    flag: bool = False
    level: Literal["low", "high"] = "low"
    items: Annotated[list[int], Field(min_length=1)] = [1]
    inner: Inner = Inner()
    labels: Annotated[dict[str, str], Field(max_length=1)] = {}
    own: str = ""

    @field_validator("own")
    @classmethod
    def _own(cls, value: str) -> str:
        if value:
            raise ValueError("a duration is like 7d")
        return value


class Needed(BaseModel):
    needed: int


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"count": "abc"}, "must be an integer"),
        ({"count": 0}, "must be at least 1"),
        ({"count": 10}, "must be at most 9"),
        ({"ratio": "abc"}, "must be a number"),
        ({"name": 5}, "must be a string"),
        ({"name": "long"}, "must have at most 3 characters"),
        ({"flag": "maybe"}, "must be true or false"),
        ({"level": "mid"}, "must be 'low' or 'high'"),
        ({"items": 5}, "must be an array"),
        ({"items": []}, "must have at least 1 item"),
        ({"inner": 5}, "must be an object"),
        ({"labels": []}, "must be an object"),
        ({"labels": {"a": "1", "b": "2"}}, "must have at most 1 item"),
        ({"own": "x"}, "a duration is like 7d"),
    ],
)
def test_a_refused_value_is_told_in_plain_words(given: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Body.model_validate(given)
    assert [plain_reason(item["msg"]) for item in refused.value.errors()] == [told]


def test_what_is_missing_must_be_given() -> None:
    with pytest.raises(ValidationError) as refused:
        Needed.model_validate({})
    assert [plain_reason(item["msg"]) for item in refused.value.errors()] == ["must be given"]


@pytest.mark.parametrize("sentence", ["a size is a whole number of bytes", ""])
def test_another_sentence_stays_as_it_is(sentence: str) -> None:
    assert plain_reason(sentence) == sentence
