"""What happened in a run, in lines with virtual time: the same for the same seed."""

import hashlib
from collections import Counter
from collections.abc import Callable


class Story:
    def __init__(self, elapsed: Callable[[], float], echo: Callable[[str], object] | None) -> None:
        self.lines: list[str] = []
        self.counts: Counter[str] = Counter()
        """How often things happened, by their first words."""
        self._elapsed = elapsed
        self._echo = echo

    def tell(self, who: str, what: str) -> None:
        line = f"{self._elapsed():10.4f}  {who:<11} {what}"
        self.lines.append(line)
        if self._echo is not None:
            self._echo(line)

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] += number

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]
