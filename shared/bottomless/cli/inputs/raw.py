"""Raw: the whole input is one record."""

from base64 import b64encode
from collections.abc import Iterator
from typing import BinaryIO

from bottomless.cli.inputs.parts import Part, Taking
from bottomless.errors import Code, InvalidRequest
from bottomless.model.limits import RECORD_VALUE_SIZE_MAX


def parts(source: BinaryIO, taking: Taking) -> Iterator[Part]:
    """Read the whole input as one part with one record.

    Raises:
        InvalidRequest: the input is too long for one record.
    """
    from bottomless.client.encoding import JSON, OCTETS, json_body  # noqa: PLC0415

    value = source.read(RECORD_VALUE_SIZE_MAX + 1)
    if len(value) > RECORD_VALUE_SIZE_MAX:
        raise InvalidRequest(
            "the input is too long for one record",
            code=Code.RECORD_TOO_LARGE,
            facts={"max_bytes": RECORD_VALUE_SIZE_MAX},
        )
    if taking.skipped:
        return
    if taking.shared:
        # In an envelope, which has room for what goes with the value.
        record = {"value_base64": b64encode(value).decode(), **taking.shared}
        yield Part(json_body([record]), JSON, 1, len(value))
    else:
        yield Part(value, OCTETS, 1, len(value))
