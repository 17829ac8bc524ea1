"""Calls of every op in the table, small and with odd sizes: what the tests of the axes are made on."""

from tests.axes.cases.call import Case, as_list
from tests.axes.cases.elements import FACTORIES, INDEXING, POINTWISE
from tests.axes.cases.images import CONVOLUTION
from tests.axes.cases.layers import ATTENTION, MATRIX, NORMS
from tests.axes.cases.reductions import LOSSES, REDUCTIONS
from tests.axes.cases.shapes import SLICES, VIEWS

__all__ = ["CASES", "Case", "as_list"]

CASES: list[Case] = [
    *POINTWISE,
    *FACTORIES,
    *INDEXING,
    *VIEWS,
    *SLICES,
    *MATRIX,
    *CONVOLUTION,
    *ATTENTION,
    *NORMS,
    *REDUCTIONS,
    *LOSSES,
]
