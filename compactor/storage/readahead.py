"""Many small reads at once, because an object store answers each of them late."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def read_ahead(read: Callable[[_In], _Out], arguments: Iterable[_In], *, threads: int = 8) -> Iterator[_Out]:
    """`read` of each argument, in order, by a few threads; at most `threads` results exist that nobody has taken.

    What `read` raises is raised in its place, and nothing is begun after that.
    """
    waiting: deque[Future[_Out]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="read-ahead") as pool:
        try:
            for argument in arguments:
                if len(waiting) == threads:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(read, argument))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
