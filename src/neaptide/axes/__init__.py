"""Dimension flow: along which directions an op can be done in parts, and which dims of its tensors run along them.

In: an op and the specs of its arguments and results (ints or sympy expressions alike). Out: its axes. An op without a rule
has none and stays whole; a rule yields only what holds at every size.

    rules.py         the form of the table        matrix.py        products
    parts.py         one part of a call           convolution.py   images, channels, planes
    pointwise.py     element by element           attention.py     sequences, heads, rows
    factories.py     shapes and positions         norms.py         what is not normalised over
    views.py         other shapes                 reductions.py    along a dim
    slices.py        pieces                       indexing.py      by index
    losses.py        over classes
"""

from neaptide.axes import (
    attention,
    convolution,
    factories,
    indexing,
    losses,
    matrix,
    norms,
    parts,
    pointwise,
    reductions,
    slices,
    views,
)
from neaptide.axes.rules import (
    RULES,
    Axis,
    Flow,
    along_input,
    along_output,
    axes,
    equal,
    flows,
    is_listed,
    quotient,
    tensors_in,
)

__all__ = [
    "RULES",
    "Axis",
    "Flow",
    "along_input",
    "along_output",
    "attention",
    "axes",
    "convolution",
    "equal",
    "factories",
    "flows",
    "indexing",
    "is_listed",
    "losses",
    "matrix",
    "norms",
    "parts",
    "pointwise",
    "quotient",
    "reductions",
    "slices",
    "tensors_in",
    "views",
]
