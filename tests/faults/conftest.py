"""One house for all tests of a module: each takes a stream of its own."""

from collections.abc import Iterator

import pytest
from support.fault_house import FaultHouse, Load, fault_house
from support.s3 import S3Server


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, seaweed: S3Server) -> Iterator[FaultHouse]:
    with fault_house(tmp_path_factory.mktemp("house"), seaweed) as running:
        yield running
        running.proxy.calm()
        running.check_cleaned()


@pytest.fixture
def load(house: FaultHouse) -> Iterator[Load]:
    """A stream and its producer; the proxy disturbs nothing before and after."""
    house.proxy.calm()
    with house.load() as made:
        yield made
    house.proxy.calm()
