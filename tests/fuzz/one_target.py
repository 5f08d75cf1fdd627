"""One target under atheris, in a process of its own: `python -m fuzz.one_target NAME ARGUMENTS`.

Arguments are libFuzzer's. Half of what it makes up is sealed, so that both what checksums find
and what lies behind them is met. Memory is bounded by the operating system: a size that is
believed ends in a MemoryError, which no target expects.
"""

import resource
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["bottomless", "bottomless_server"]):
    from fuzz.targets import TARGETS

MEMORY_MAX = 640 * 1024 * 1024
"""Bytes more than the process has when it begins; the largest frame has 96 MiB."""


def bound_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    bound = pages * resource.getpagesize() + MEMORY_MAX
    resource.setrlimit(resource.RLIMIT_AS, (bound, resource.RLIM_INFINITY))


def main() -> None:
    name, *arguments = sys.argv[1:]
    target = TARGETS[name]

    def mutate(data: bytes, size_max: int, seed: int) -> bytes:
        mutated: bytes = atheris.Mutate(data, size_max)
        return (target.sealed(mutated) if seed % 2 else mutated)[:size_max]

    atheris.Setup([sys.argv[0], *arguments], target.run, custom_mutator=mutate)
    bound_memory()
    atheris.Fuzz()


if __name__ == "__main__":
    main()
