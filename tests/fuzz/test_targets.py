"""The targets of `./dev fuzz` are good ones, and what it found once is not found again."""

import pytest

from fuzz.targets import FOUND, TARGETS, folder_of, kept_inputs


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_takes_its_good_bytes_and_all_that_it_failed_on_once(name: str) -> None:
    """Beside them some that are near: cut, and with each byte another."""
    target = TARGETS[name]
    for data in (target.good, *(path.read_bytes() for path in kept_inputs(name))):
        target.run(data)
        target.run(target.sealed(data))
        for at in range(0, len(data), max(len(data) // 16, 1)):
            target.run(target.sealed(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]))
            target.run(target.sealed(data[:at]))


def test_every_kept_input_belongs_to_a_target() -> None:
    kept = {path.name for path in FOUND.iterdir()}
    assert kept <= {folder_of(name) for name in TARGETS}
    assert kept
