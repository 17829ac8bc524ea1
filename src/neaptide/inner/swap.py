"""A piece of a program that runs as it is until a compiler is done with it, and fused from then on, where that fits.

In: a program and how a piece of it is emitted. Out: at each size the `Emitted` to run. Nobody waits: a compiler works in a
process of its own, a thread here talks to it and judges what comes back, and what cannot be fused runs as it is.
"""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from neaptide.inner.calls import Fuse
from neaptide.inner.compiler import Compiler, CompilerError, Kernels
from neaptide.inner.fragment import Fragment
from neaptide.inner.peaks import peaks
from neaptide.program import Program
from neaptide.writer import Emitted

Dims = tuple[int, ...]
Inner = Literal["auto", "inductor"] | None
ROUNDING = 1 << 16
"""Bytes by which pages may be counted otherwise."""
FORMS = 4
"""How often a piece is compiled, at most: kernels may rely on something about sizes that does not hold at others."""


@dataclass(eq=False)
class Piece:
    """A piece of a program: `emit` makes it, with fragments fused or not; `begin` is its first step."""

    program: Program
    begin: int
    emit: Callable[[Fuse | None], Emitted]
    lowering: Lowering | None = None
    plain: Emitted = field(init=False)
    fused: list[Emitted] = field(default_factory=list)
    """The forms of it that were compiled, each for some sizes."""
    _uses: int = 0
    _asked: set[Dims] = field(default_factory=set)
    _settled: dict[Dims, Emitted] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plain = self.emit(None)

    def at(self, dims: Dims, allowed: int | None) -> Emitted:
        """What to run at these sizes, where the piece may take so many bytes; with None, whatever it takes."""
        if self.lowering is None:
            return self.plain
        found = self._settled.get(dims)
        if found is not None:
            return found
        self._uses += 1
        if self._uses > 1 and dims not in self._asked:  # what runs once is not worth it
            self._asked.add(dims)
            self.lowering.ask(lambda fuse: self._settle(fuse, dims, allowed))
        return self.plain

    def _settle(self, fuse: Fuse, dims: Dims, allowed: int | None) -> None:
        """Find the form to run at these sizes, compiling one where none is there."""
        form = next((each for each in self.fused if _serves(each, dims)), None)
        if form is None and len(self.fused) < FORMS:
            form = self.emit(lambda fragment: fuse(fragment.at(dims)))
            self.fused.append(form)
        if form is None or not _serves(form, dims):
            form = self.plain
        elif allowed is not None:
            form = self._lowered(form, dims, allowed + ROUNDING)
        self._settled[dims] = form

    def _lowered(self, form: Emitted, dims: Dims, allowed: int) -> Emitted:
        """The form with those fragments as they are that would take too much."""
        taken = peaks(self.program, self.begin, form.kernels, dims)
        fitting = {k.fragment.key: k for k, taken in zip(form.kernels, taken, strict=True) if taken <= allowed}
        if len(fitting) == len(form.kernels):
            return form
        return self.emit(lambda fragment: fitting.get(fragment.key)) if fitting else self.plain


def _serves(form: Emitted, dims: Dims) -> bool:
    return all(kernels.serve(dims) for kernels in form.kernels)


class Lowering:
    """A compiler at work in the background, on one piece after the other."""

    def __init__(self, told: Callable[[], None]) -> None:
        self._made = told
        """Called for each fragment that was fused."""
        self._asked: queue.SimpleQueue[Callable[[Fuse], None]] = queue.SimpleQueue()
        self._compiler = Compiler()
        self._thread: threading.Thread | None = None
        self._open = 0
        self._idle = threading.Condition()
        self._told: set[str] = set()

    def ask(self, job: Callable[[Fuse], None]) -> None:
        """Have something done when its turn comes."""
        with self._idle:
            self._open += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="neaptide lowering", daemon=True)
                self._thread.start()
        self._asked.put(job)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all that was asked for is done; False where that takes longer than `seconds`."""
        with self._idle:
            return self._idle.wait_for(lambda: self._open == 0, seconds)

    def stop(self) -> None:
        """Let the compiler's process go."""
        self._compiler.stop()

    def _work(self) -> None:
        while True:
            job = self._asked.get()
            try:
                job(self._fuse)
            except Exception as error:  # whatever goes wrong here, the piece runs as it is
                self._tell(error)
            finally:
                with self._idle:
                    self._open -= 1
                    self._idle.notify_all()

    def _fuse(self, fragment: Fragment) -> Kernels | None:
        """The kernels of a fragment; None where the compiler cannot make them."""
        try:
            made = self._compiler.lower(fragment)
        except CompilerError as error:
            self._tell(error)
            return None
        self._made()
        return made

    def _tell(self, error: Exception) -> None:
        """Once for each kind of failure."""
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if first not in self._told:
            self._told.add(first)
            warnings.warn(f"some of it runs without fused kernels: {first}", stacklevel=2)
