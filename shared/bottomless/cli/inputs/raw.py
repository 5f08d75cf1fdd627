"""Raw: the whole input is one record."""

from collections.abc import Iterator
from typing import BinaryIO

from bottomless.cli.inputs.parts import Part, Taking
from bottomless.errors import Code, InvalidRequest
from bottomless.model.limits import RECORD_VALUE_SIZE_MAX


def parts(source: BinaryIO, taking: Taking) -> Iterator[Part]:
    from bottomless.client.encoding import OCTETS  # noqa: PLC0415

    value = source.read(RECORD_VALUE_SIZE_MAX + 1)
    if len(value) > RECORD_VALUE_SIZE_MAX:
        raise InvalidRequest(
            "the input is too long for one record",
            code=Code.RECORD_TOO_LARGE,
            facts={"max_bytes": RECORD_VALUE_SIZE_MAX},
        )
    if not taking.skipped:
        yield Part(value, OCTETS, 1, len(value))
