"""What libraries find out about routes and settings is found out once, and is right for each."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI, routing
from pydantic import ValidationError
from pydantic_settings import BaseSettings
from support.asgi import client_of
from support.known_routes import ROUTES, VALUES, find_out_once


class Greeter:
    def __init__(self, greeting: str) -> None:
        self.greeting = greeting
        self.app = FastAPI()
        self.app.add_api_route("/{name}/{count}", self.greet)

    async def greet(self, name: str, count: int) -> list[str]:
        return [f"{self.greeting} {name}"] * count

    async def greet_one(self, name: str) -> str:
        return f"{self.greeting} {name}"


class Sizes(BaseSettings):
    small_size: int = 1
    large_size: int = 2


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was looked at by the libraries themselves, and by nobody before."""
    seen: list[str] = []
    find_route: Callable[..., None] = getattr(routing, ROUTES)
    read_values: Callable[..., Any] = getattr(BaseSettings, VALUES).__func__

    def noted_route(route: Any, path: str, endpoint: Any, **options: Any) -> None:
        seen.append(path)
        find_route(route, path, endpoint, **options)

    def noted_values(kind: type[BaseSettings], *arguments: Any) -> Any:
        seen.append(kind.__name__)
        return read_values(kind, *arguments)

    monkeypatch.setattr(routing, ROUTES, noted_route)
    monkeypatch.setattr(BaseSettings, VALUES, classmethod(noted_values))
    monkeypatch.setattr(BaseSettings, "__init__", BaseSettings.__init__)
    find_out_once()
    return seen


async def test_each_service_has_its_own_method_at_a_route_that_is_known(looks: list[str]) -> None:
    for greeting in ("good morning", "good night"):
        async with client_of(Greeter(greeting).app) as client:
            assert (await client.get("/moon/2")).json() == [f"{greeting} moon"] * 2
            assert (await client.get("/moon/many")).status_code == 422

    assert looks.count("/{name}/{count}") == 1


async def test_what_a_decorator_says_is_not_taken_for_what_another_one_says() -> None:
    for status in (200, 201):
        greeter = Greeter("good morning")
        greeter.app.add_api_route("/{name}", greeter.greet_one, status_code=status)
        async with client_of(greeter.app) as client:
            assert (await client.get("/moon")).status_code == status


def test_settings_read_the_environment_anew_where_it_says_another_thing(
    looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (Sizes().small_size, Sizes().large_size) == (1, 2)
    assert looks.count("Sizes") == 1
    monkeypatch.setenv("SMALL_SIZE", "7")

    assert (Sizes().small_size, Sizes(large_size=9).large_size) == (7, 9)
    assert Sizes(small_size=3).small_size == 3, "what is said by name comes before it"
    assert looks.count("Sizes") == 2
    monkeypatch.setenv("SMALL_SIZE", "8")
    assert Sizes().small_size == 8
    monkeypatch.setenv("SMALL_SIZE", "7")
    assert Sizes().small_size == 7
    monkeypatch.delenv("SMALL_SIZE")
    assert Sizes().small_size == 1


def test_what_no_setting_is_called_is_refused_as_ever() -> None:
    with pytest.raises(ValidationError, match="size_of_nothing"):
        Sizes(size_of_nothing=1)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="small_size"):
        Sizes(small_size="many")
