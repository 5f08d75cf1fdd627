"""Either side: the options of the whole program can stand after a command as well as before it.

Each command gets them as hidden options, unless it has an option of that name or belongs to another
distribution. If both sides say something, what stands after the command counts.
"""

from copy import copy
from typing import Any, Final

import typer

from bottomless.cli.session import Session

_SPREAD: Final = frozenset({"url", "profile", "token_file", "ca_file"})
_OWN: Final = "bottomless."


def spread_options(group: Any) -> None:
    """Let every command below a group accept the options of that group."""
    options = [option for option in group.params if option.name in _SPREAD]
    for command in group.commands.values():
        _add(command, options)


def _add(command: Any, options: list[Any]) -> None:
    if not getattr(command, "commands", None) and not _is_own(command):
        return
    taken = {text for parameter in command.params for text in parameter.opts}
    for option in options:
        if not taken.intersection(option.opts):
            command.params.append(_hidden(option))
    for below in getattr(command, "commands", {}).values():
        _add(below, options)


def _is_own(command: Any) -> bool:
    return getattr(command.callback, "__module__", "").startswith(_OWN)


def _hidden(option: Any) -> Any:
    made = copy(option)
    made.hidden = True
    made.expose_value = False
    made.callback = _note
    return made


def _note(context: typer.Context, parameter: Any, value: Any) -> Any:
    if value is not None:
        root = context.find_root()
        root.params[parameter.name] = value
        root.obj = Session.of_parameters(root.params)
    return value
