"""One deployment for all tests of a module: each takes a stream of its own."""

from collections.abc import Iterator

import pytest
from support.fault_deployment import FaultDeployment, Load, fault_deployment
from support.s3 import S3Server


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory, seaweed: S3Server
) -> Iterator[FaultDeployment]:
    with fault_deployment(tmp_path_factory.mktemp("run"), seaweed) as running:
        yield running
        running.proxy.calm()
        running.check_cleaned()


@pytest.fixture
def load(deployment: FaultDeployment) -> Iterator[Load]:
    """A stream and its producer; the proxy disturbs nothing before and after."""
    deployment.proxy.calm()
    with deployment.load() as made:
        yield made
    deployment.proxy.calm()
