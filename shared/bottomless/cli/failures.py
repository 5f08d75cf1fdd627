"""Failures: one line on stderr that says what happened and what to do, and an exit code.

The line is `bottomless: sentence (code); outcome; advice`. A bug keeps its traceback, which a
report of it needs more than a nice line.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer
from typer.core import TyperGroup

from bottomless.cli.connection import CHOICE, Choice
from bottomless.cli.either_side import spread_options
from bottomless.cli.human import printable
from bottomless.cli.light_options import lighten_options
from bottomless.cli.meant import NO_QUEUE, NO_STREAM, OVER_HTTP, reason_in
from bottomless.cli.reasons import Reason, reason_of
from bottomless.errors import (
    Code,
    Corrupt,
    Denied,
    Exists,
    Fenced,
    InvalidRequest,
    NotFound,
    OffsetGone,
    Outcome,
    Overloaded,
    StoreError,
    Unavailable,
    WrongOffset,
)
from bottomless.model.plain_reason import plain_reason

EXIT_CODES: Final = (
    "Exit codes: 0 done; 1 refused, or failed; 2 wrong usage; 3 not found; 4 in conflict with "
    "what is there; 5 not available now, may succeed later; 6 not allowed; 130 interrupted; "
    "141 the reader of the output has gone; 143 ended by SIGTERM."
)

_FAILED: Final = 1
_NOT_FOUND: Final = 3
_CONFLICT: Final = 4
_UNAVAILABLE: Final = 5
_DENIED: Final = 6
_INTERRUPTED: Final = 130
_BROKEN_PIPE: Final = 141
_FAULT_COUNT_MAX: Final = 3
_STDOUT: Final = 1

_OUTCOMES: Final = {
    Outcome.NONE: "nothing was changed",
    Outcome.COMMITTED: "the change was made all the same",
    Outcome.UNKNOWN: "whether it was stored is not known",
}

_ADVICE: Final[dict[type[StoreError], str]] = {
    InvalidRequest: "correct it, then try again",
    Denied: "`bottomless whoami` shows what you may do",
    NotFound: "give another name",
    Exists: "use the one that exists, or another name",
    WrongOffset: "look at the present state, then decide",
    OffsetGone: "take an offset from first_offset on",
    Fenced: "ask the owner that the stream has now",
    Overloaded: "wait, then do the same again",
    Unavailable: "try again, and see that the server runs where --url says",
    Corrupt: "tell the operator: a retry does not help",
}

_ADVICE_BY_CODE: Final = {
    Code.NOT_FOUND: "see that --url leads to all services and not to one alone, or give another name",
    Code.STREAM_NOT_FOUND: NO_STREAM,
    Code.QUEUE_NOT_FOUND: NO_QUEUE,
    Code.QUEUE_EXISTS: "`bottomless queue update` changes it, or take another name",
    Code.QUEUE_NOT_EMPTY: "`bottomless queue purge` removes its messages",
    Code.QUEUE_IN_USE: "`bottomless queue update` has the dead letters of the other go elsewhere",
    Code.CONSUMER_NOT_FOUND: "`bottomless consumers ls` shows those that stored an offset",
    Code.OFFSET_NOT_FOUND: "`bottomless consumers set` stores one, `bottomless tail --consumer` as it reads",
    Code.KEY_NOT_FOUND: "`bottomless keys ls` shows the keys",
    Code.KEY_NOT_ACTIVE: "`bottomless keys create` makes another",
    Code.UNAUTHENTICATED: "name a token with --token-file, BOTTOMLESS_TOKEN or a profile",
    Code.STREAM_EXISTS: "`bottomless update` changes it, or take another name",
    Code.COORDINATION_REGRESSED: "docs/runbooks.md says how, and seconds after it this passes",
    Code.STREAM_FENCED: "`bottomless unfence` lets it take appends again",
    Code.PRODUCER_FENCED: "another run of this producer has begun: let only one run",
    Code.OFFSET_BEYOND_END: "`bottomless offsets` shows where the stream ends",
    Code.NOT_OWNER: (
        "wait some seconds: where a node has died another one goes on after its lease, if it can "
        "(`bottomless replicas status` shows the nodes of a stream)"
    ),
    Code.NOT_ENOUGH_REPLICAS: (
        "`bottomless replicas status` shows which of its nodes are away, and whether it has as many "
        "as it asks for: start those again, or further ones, and appends go on by themselves"
    ),
    Code.COMMIT_TIMEOUT: "it may be shown later, and sent again with --producer it is stored once",
    Code.NOT_IN_SYNC: "`bottomless replicas status` shows which nodes have everything",
    Code.IN_SYNC_LIVE: (
        "nothing is lost: a node that has everything goes on by itself, "
        "as `bottomless replicas status` shows"
    ),
    Code.DRIVE_UNKNOWN: (
        "`bottomless drives ls` shows the drives, `bottomless drives add` registers one that "
        "BOTTOMLESS_DRIVES of the services names"
    ),
    Code.PARTITION_OF_SUPER_STREAM: (
        "say it of the super stream, whose name is this one without the number: `bottomless super update` "
        "changes all partitions, `bottomless super rm` deletes them"
    ),
    Code.OFFSET_REGRESSION: "--allow-regression stores it all the same",
}

_ANOTHER_PROFILE: Final = "take another name; `bottomless spark replay` copies it there"


class Guarded(TyperGroup):
    """The group of all commands; no foreseeable failure leaves it as a traceback."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        spread_options(self)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Here and not above: the library adds options of its own after it has made the group.
        lighten_options(self)
        with usage_told_plainly():
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        meant = None if args[0] in self.commands else self._of_other_number(args[0])
        # A shell that asks for completions is told nothing.
        if meant is not None and not ctx.resilient_parsing:
            words = " ".join(["bottomless", meant, *self._words_below(ctx, meant, args[1:])])
            ctx.fail(f"No such command. Did you mean `{words}`?")
        return super().resolve_command(ctx, args)

    def _of_other_number(self, word: str) -> str | None:
        """The group of commands that is meant by a plural for its singular, or the other way round."""
        other = word.removesuffix("s") if word.endswith("s") else f"{word}s"
        return other if isinstance(self.commands.get(other), TyperGroup) else None

    def _words_below(self, ctx: Any, group: str, words: list[str]) -> list[str]:
        """The command of a group that is named first; none where it has none of this name."""
        found = self.commands[group]
        assert isinstance(found, TyperGroup)
        return [word for word in words[:1] if found.get_command(ctx, word) is not None]

    def invoke(self, ctx: Any) -> Any:
        told = failures_told(lambda: ctx.meta.get(CHOICE), lambda error: reason_in(ctx, error))
        with told, usage_told_plainly():
            return super().invoke(ctx)


@contextmanager
def usage_told_plainly() -> Iterator[None]:
    """Put plainly what the library says that checks options."""
    try:
        yield
    except typer.BadParameter as error:
        error.message = plain_reason(error.message)
        raise


@contextmanager
def failures_told(
    choice: Callable[[], Choice | None] = lambda: None,
    better: Callable[[StoreError], Reason | None] = lambda _: None,
) -> Iterator[None]:
    """Turn a failure in the block into a line and an exit code.

    `choice` says afterwards which server was talked to, if any, and `better` what is known here
    about an error that the server does not know.
    """
    try:
        try:
            yield
        finally:
            # Here, where a reader that went away is known; not while the interpreter ends.
            sys.stdout.flush()
    except KeyboardInterrupt as error:
        raise typer.Exit(_INTERRUPTED) from error
    except BrokenPipeError as error:
        _silence_stdout()
        raise typer.Exit(_BROKEN_PIPE) from error
    except StoreError as error:
        tell(sentence_of(error, choice(), better(error)))
        raise typer.Exit(exit_code_of(error)) from error
    except OSError as error:
        named = f": {error.filename}" if error.filename else ""
        tell(f"{error.strerror or error}{named}")
        raise typer.Exit(_FAILED) from error


def tell(sentence: str) -> None:
    """Say something to the user at the terminal, on stderr and not in the output."""
    # It may be the sentence of a server, or of whoever answers in its place.
    sys.stderr.write(f"bottomless: {printable(' '.join(sentence.split()))}\n")
    sys.stderr.flush()


def sentence_of(
    error: StoreError, choice: Choice | None = None, better: Reason | None = None
) -> str:
    """Make the line of a failure: what happened, whether anything was changed, what to do."""
    sentence, advice = (better.sentence, better.advice) if better else advice_for(error, choice)
    own = None if better is None else better.faults
    faults = error.reasons() if own is None else own
    parts = [f"{sentence} ({error.code})", *faults[:_FAULT_COUNT_MAX]]
    if error.outcome is Outcome.NONE and error.facts.get("stored_before"):
        parts.append("nothing more was stored")
    elif error.outcome is not None:
        parts.append(_OUTCOMES[error.outcome])
    return "; ".join([*parts, advice] if advice else parts)


def advice_for(error: StoreError, choice: Choice | None) -> tuple[str, str]:
    """Say what happened, as exactly as possible, and what to do; the advice may be empty."""
    reason = None if choice is None else reason_of(error, choice)
    if reason is not None:
        return reason.sentence, reason.advice
    if error.retryable and isinstance(error, InvalidRequest):
        return error.summary, _ADVICE[Overloaded]
    advice = _ADVICE_BY_CODE.get(error.code)
    if error.code is Code.STREAM_EXISTS and "/profile" in str(error.facts.get("differences")):
        advice = _ANOTHER_PROFILE
    sentence = StoreError(error.message.partition(OVER_HTTP)[0], facts=error.facts).summary
    return sentence, advice or _advice_of(error)


def exit_code_of(error: StoreError) -> int:
    """Choose the exit code for the kind of error."""
    match error:
        case Denied():
            return _DENIED
        case NotFound():
            return _NOT_FOUND
        case Exists() | WrongOffset() | OffsetGone() | Fenced():
            return _CONFLICT
        case Overloaded() | Unavailable():
            return _UNAVAILABLE
    return _UNAVAILABLE if error.retryable else _FAILED


def _advice_of(error: StoreError) -> str:
    return next((text for kind, text in _ADVICE.items() if isinstance(error, kind)), "")


def _silence_stdout() -> None:
    """Let nothing be written there any more, also not what is buffered."""
    if sys.stdout is sys.__stdout__:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDOUT)
        os.close(nowhere)
