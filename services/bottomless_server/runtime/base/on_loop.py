"""What a coroutine asks of the loop that it runs on: its time, and a call in a thread."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def loop_time() -> float:
    """Seconds of the loop's monotonic clock, by which timers run; they begin at any number."""
    return asyncio.get_running_loop().time()


async def in_thread(executor: Executor, call: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """What a call that blocks returns, or raises; it runs in a thread of `executor`.

    Who is cancelled leaves the call running if it has begun: nobody can end a thread.
    """
    return await asyncio.get_running_loop().run_in_executor(executor, call, *arguments)
