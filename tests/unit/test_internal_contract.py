"""The contract of the internal protocol is a valid one, and its references lead somewhere."""

from pathlib import Path

import pytest
from openapi_spec_validator import validate
from openapi_spec_validator.readers import read_from_filename

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["internal.yaml", "components/errors.yaml"])
def test_the_contract_is_valid_openapi(name: str) -> None:
    spec, base_uri = read_from_filename(str(ROOT / "openapi" / name))

    validate(spec, base_uri=base_uri)
