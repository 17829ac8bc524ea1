"""What a piece takes with fragments of it fused.

In: a program, the kernels of fragments of a piece, sizes. Out: the peak of each: the level at its beginning, which the
program's own timeline tells, and how far the kernels' own code lets it rise.
"""

from __future__ import annotations

from collections.abc import Sequence

from neaptide.inner.compiler import Kernels
from neaptide.inner.foresee import rise
from neaptide.memory import envelope
from neaptide.program import Program


def peaks(program: Program, begin: int, kernels: Sequence[Kernels], dims: tuple[int, ...]) -> list[int]:
    """Bytes at the highest point of each fragment of the piece that begins at a step, beyond what is lent."""
    whole = envelope(program)

    def level(each: Kernels) -> int:
        places = each.fragment.places(program, begin)
        return max(whole.there(dims, at) for at in places) + each.fragment.beside(dims)

    return [level(each) + rise(each, dims) for each in kernels]
