"""Bytes that were good, after edits of any kind: what decoders are tried with."""

from hypothesis import strategies as st

Edit = tuple[str, int, int]
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "set", "word", "insert", "delete", "cut", "double"]),
        st.integers(0, 1_000),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=4,
)


def edited(data: bytes, edits: list[Edit]) -> bytes:
    raw = bytearray(data)
    for kind, place, value in edits:
        at = place % (len(raw) + 1)
        match kind:
            case "flip":
                raw[at : at + 1] = bytes(byte ^ (1 << value % 8) for byte in raw[at : at + 1])
            case "set":
                raw[at : at + 1] = bytes([value])[: len(raw) - at]
            case "word":
                # A number of four bytes at its place, as large as can be or nearly so.
                start = at & ~3
                raw[start : start + 4] = bytes([value, 0xFF, 0xFF, 0xFF])[: len(raw) - start]
            case "insert":
                raw[at:at] = bytes([value])
            case "delete":
                del raw[at : at + 1 + value % 9]
            case "cut":
                del raw[at:]
            case _:
                raw[at:at] = raw[at : at + value]
    return bytes(raw)
