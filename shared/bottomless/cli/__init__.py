"""`bottomless`, the command line. Other distributions add commands by entry points.

There is one module per subject. Nothing heavy is imported before a command runs, so that help and
completion are quick: a command imports the client when it is about to talk to a server.
"""

from bottomless.cli.app import create_app, main

__all__ = ["create_app", "main"]
