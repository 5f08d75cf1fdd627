"""Lines: each is a record with that text, or with those bytes if they are none."""

from base64 import b64encode
from collections.abc import Iterator
from typing import BinaryIO

import orjson

from bottomless.cli.inputs.parts import Part, Taking
from bottomless.cli.inputs.text import parts_of_lines


def parts(source: BinaryIO, taking: Taking) -> Iterator[Part]:
    return parts_of_lines(source, taking, encode)


def encode(line: bytes, _number: int) -> bytes:
    try:
        return orjson.dumps({"value": line.decode()})
    except UnicodeDecodeError:
        return orjson.dumps({"value_base64": b64encode(line).decode()})
