"""Turns decisions into programs: changes, never decides."""

from neaptide.apply.absent import usually_absent as usually_absent
from neaptide.apply.absent import without as without
from neaptide.apply.accumulate import add_gradients as add_gradients
from neaptide.apply.chunk import chunk as chunk
from neaptide.apply.inplace import write_in_place as write_in_place
from neaptide.apply.order import reordered as reordered
from neaptide.apply.recompute import marked as marked
from neaptide.apply.recompute import recompute as recompute
from neaptide.apply.recompute import straight as straight
from neaptide.apply.recompute import unpruned as unpruned
