"""Hidden allocations: what an op takes beside its outputs while it runs.

In: an op and the specs of its arguments (ints or sympy expressions alike). Out: bytes, in the same arithmetic.

Every rule was fitted to what `benchmarks/workspaces.py` measures on the CPU (oneDNN and MKL, AVX-512) and is printed
there beside the measurement. An op without a rule hides nothing, or nothing that anyone has measured; on an
accelerator nothing has been measured.

    rules.py         the form of the table        convolution.py   blocks of channels
    matrix.py        products                     attention.py     tiles of scores
    kernels.py       everything else
"""

from neaptide.workspaces import attention, convolution, kernels, matrix
from neaptide.workspaces.kernels import retained
from neaptide.workspaces.rules import RULES, Spec, is_listed, most, workspace

__all__ = [
    "RULES",
    "Spec",
    "attention",
    "convolution",
    "is_listed",
    "kernels",
    "matrix",
    "most",
    "retained",
    "workspace",
]
