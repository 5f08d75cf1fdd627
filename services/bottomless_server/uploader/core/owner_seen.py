"""The node to believe about the tail of one stream: the owner of the newest epoch that was seen.

Several ingest nodes are followed, and one that was paused may still speak of a stream that
another one owns by now. Its log may hold what the stream does not; the manifest would refuse
a fragment of it, but whoever waits for that uploads nothing meanwhile.
"""

from typing import Generic, TypeVar

from bottomless.guards import guard

T = TypeVar("T")


class OwnerSeen(Generic[T]):
    """The newest epoch of a stream, and where its owner was heard."""

    def __init__(self, epoch: int, source: T) -> None:
        self.epoch = epoch
        self.source = source

    def hear(self, epoch: int, source: T) -> bool:
        """Take word of an owner; False if it is one of the past, who is not believed."""
        if not self.takes(epoch):
            return False
        self.epoch, self.source = epoch, source
        return True

    def note(self, epoch: int) -> None:
        """The stream's record shows this epoch: whoever has an older one owns it no more."""
        self.epoch = max(self.epoch, epoch)

    @guard("the epoch of the owner that the uploader follows")
    def takes(self, epoch: int) -> bool:
        """Whether an answer under this epoch is the newest owner's, as far as was seen."""
        return epoch >= self.epoch
