"""Light options: what is of its type already is not given to a library that would check it.

The library that reads command lines converts each value by another one, also a value that nobody
gave: loading that takes longer than asking a server for its streams. Text that stays text, a
default that is there already and an option that is absent need no conversion; everything else is
converted as before.
"""

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any


def lighten_options(group: Any) -> None:
    """Let no parameter of the commands below a group convert what is of its type already."""
    for parameter in group.params:
        _lighten(parameter)
    # It makes that of --help by itself, when it reads a command line.
    if "get_help_option" not in vars(group):
        group.get_help_option = partial(_help_option, group.get_help_option)
    for command in getattr(group, "commands", {}).values():
        lighten_options(command)


def _help_option(made: Callable[[Any], Any], context: Any) -> Any:
    option = made(context)
    if option is not None:
        _lighten(option)
    return option


def _lighten(parameter: Any) -> None:
    # Where it is not there, the library is one that converts by itself.
    if hasattr(parameter, "type_descriptor") and "process_value" not in vars(parameter):
        parameter.process_value = partial(_process, parameter, parameter.process_value)


def _process(parameter: Any, convert: Callable[..., Any], context: Any, value: Any) -> Any:
    """Give a value on, as the library would: to the parameter's callback if it has one."""
    if not _is_ready(parameter, value):
        return convert(context, value)
    return value if parameter.callback is None else parameter.callback(context, parameter, value)


def _is_ready(parameter: Any, value: Any) -> bool:
    if parameter.multiple or parameter.nargs != 1:
        return False
    told = parameter.type_descriptor
    if value is None:
        # One that must be given is refused by the library.
        return not parameter.required
    if told.parameter_info.parser is not None:
        return False
    same = type(value) is told.annotation
    return same and (told.annotation is str or isinstance(value, Enum))
