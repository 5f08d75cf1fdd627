"""What libraries find out about routes and settings is found out once, and is right for each."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI, routing
from pydantic_settings import BaseSettings
from pydantic_settings.sources.base import PydanticBaseEnvSettingsSource
from support.asgi import client_of
from support.known_routes import FIELDS, ROUTES, find_out_once


class Greeter:
    def __init__(self, greeting: str) -> None:
        self.greeting = greeting
        self.app = FastAPI()
        self.app.add_api_route("/{name}/{count}", self.greet)

    async def greet(self, name: str, count: int) -> list[str]:
        return [f"{self.greeting} {name}"] * count


class Sizes(BaseSettings):
    small_size: int = 1
    large_size: int = 2


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was looked at by the libraries themselves, and by nobody before."""
    seen: list[str] = []

    def noting(owner: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            seen.append(str(named["path"]) if "path" in named else arguments[2])
            return real(*arguments, **named)

        monkeypatch.setattr(owner, name, noted)

    noting(routing, ROUTES)
    noting(PydanticBaseEnvSettingsSource, FIELDS)
    find_out_once()
    return seen


async def test_each_service_has_its_own_method_at_a_route_that_is_known(looks: list[str]) -> None:
    for greeting in ("good morning", "good night"):
        async with client_of(Greeter(greeting).app) as client:
            assert (await client.get("/moon/2")).json() == [f"{greeting} moon"] * 2
            assert (await client.get("/moon/many")).status_code == 422

    assert looks.count("/{name}/{count}") == 1


def test_settings_read_the_environment_anew_where_their_fields_are_known(
    looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (Sizes().small_size, Sizes().large_size) == (1, 2)
    once = looks.count("small_size")
    monkeypatch.setenv("SMALL_SIZE", "7")

    assert (Sizes().small_size, Sizes(large_size=9).large_size) == (7, 9)
    assert looks.count("small_size") == once > 0
    monkeypatch.setenv("SMALL_SIZE", "8")
    assert Sizes().small_size == 8
    monkeypatch.setenv("SMALL_SIZE", "7")
    assert Sizes().small_size == 7
    monkeypatch.delenv("SMALL_SIZE")
    assert Sizes().small_size == 1
