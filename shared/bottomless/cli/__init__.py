"""`bottomless`, the command line. Other distributions add commands by entry points.

One module a subject. Nothing heavy is imported before a command runs, so that help and
completion are quick: a command that talks imports the client when it does.
"""

from bottomless.cli.app import create_app, main

__all__ = ["create_app", "main"]
