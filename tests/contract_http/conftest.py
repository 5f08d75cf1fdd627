"""One server for each file of these tests, with something of everything in it to ask for."""

from collections.abc import Iterator

import httpx
import pytest
from support.server import AllInOne

from contract_http.seeded import Known, seed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("contract") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: AllInOne) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def known(client: httpx.Client) -> Known:
    return seed(client)
