"""Decisions of the manifest: pure, so that their tests need no loop, no store and no clock."""
