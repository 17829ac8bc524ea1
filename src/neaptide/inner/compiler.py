"""Has fragments compiled in a process beside this one, and loads what comes back.

In: a `Fragment`. Out: `Kernels`, which take one list of arguments and clear it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from neaptide._torch import load_kernels
from neaptide.errors import NeaptideError
from neaptide.inner import message
from neaptide.inner.fragment import Fragment
from neaptide.inner.look import numbers


class CompilerError(NeaptideError):
    """A compiler is missing, failed or was killed. Nothing is lost by it but speed."""


@dataclass(frozen=True, eq=False)
class Kernels:
    """What was made of a fragment: `run` takes one list; `conditions` on free sizes that it relies on; its source."""

    fragment: Fragment
    run: Callable[[list[Any]], Sequence[Any]]
    conditions: tuple[str, ...]
    source: str

    def serve(self, dims: tuple[int, ...]) -> bool:
        """Whether what was relied on holds at these sizes."""
        names = [name for name, _ in self.fragment.sizes]
        cases = (dict(zip(names, case, strict=True)) for case in self.fragment.cases(dims))
        return all(all(numbers(self.conditions, known)) for known in cases)


class Compiler:
    """The process beside this one; it is begun when it is first asked, and again if it died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._asking: Connection | None = None
        self._answering: Connection | None = None
        self._known: dict[bytes, message.Answer | str] = {}
        """What came back so far: identical layers are compiled once."""

    def lower(self, fragment: Fragment) -> Kernels:
        """The kernels of a fragment, or a `CompilerError`."""
        try:
            about = message.write(fragment)
        except Exception as error:  # ops that cannot be followed with symbolic sizes
            raise CompilerError(f"{type(error).__name__}: {error}") from error
        key = pickle.dumps(about)
        if key not in self._known:
            self._known[key] = self._ask(about)
        made = self._known[key]
        if isinstance(made, str):
            raise CompilerError(made)
        return Kernels(fragment, load_kernels(made.source), made.conditions, made.source)

    def _ask(self, about: message.Message) -> message.Answer | str:
        try:
            if self._process is None or self._process.poll() is not None:
                self._begin()
            assert self._asking is not None
            assert self._answering is not None
            self._asking.send(about)
            return self._answering.recv()
        except (OSError, EOFError) as error:
            self.stop()
            raise CompilerError(f"the process that compiles is gone ({type(error).__name__})") from error

    def _begin(self) -> None:
        command = [sys.executable, "-m", "neaptide.inner.worker"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._asking = Connection(os.dup(self._process.stdin.fileno()), readable=False)
        self._answering = Connection(os.dup(self._process.stdout.fileno()), writable=False)
        self._process.stdin.close()  # a copy is what the process waits on
        self._process.stdout.close()

    def stop(self) -> None:
        """Let the process go."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = self._asking = self._answering = None
