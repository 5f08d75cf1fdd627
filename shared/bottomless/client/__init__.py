"""Client: how a program talks to Bottomless over HTTP."""

from bottomless.client.http import Appended, ArrowPage, BottomlessClient, Fragment, Offsets, Page

__all__ = ["Appended", "ArrowPage", "BottomlessClient", "Fragment", "Offsets", "Page"]
