"""Rewrites of captured graphs: the same results from fewer, larger or smaller ops.

In: an fx graph that AOTAutograd traced for inference, whose nodes carry fake tensors. Out: the same graph, changed in place.

    linear.py      linear layers and batched products made whole again: bit for bit the same, done at every capture
    attention.py   attention that is written out becomes one call, which never has all scores at once
    scores.py      how written-out attention is recognised
    causal.py      masks that hide nothing, or only what comes later, are left to the attention kernel
    masks.py       what is added to scores and what is taken out of them, as one mask
    last.py        a slice is taken before what it is a slice of is computed
    dropout.py     in a joint graph, masks are drawn apart from what they let through: bit for bit the same, at every capture
    known.py       sizes that are known without making what has them
    losses.py      in a joint graph, a loss over classes that can be made row by row
    copies.py      a copy to be changed
    fakes.py       fake tensors for new nodes, and anew for those behind them
    forms.py       what can be told of nodes from their shapes

`linear.py` and `dropout.py` change no bit of a result. The others round differently, so that they are done on a copy
(`rewritten`), for whoever asks for less memory.
"""

from __future__ import annotations

from torch import fx

from neaptide.rewrite.attention import fuse_attention
from neaptide.rewrite.causal import drop_known_masks
from neaptide.rewrite.copies import copied_module
from neaptide.rewrite.dropout import part_dropouts
from neaptide.rewrite.fakes import sweep
from neaptide.rewrite.known import take_known_sizes
from neaptide.rewrite.last import narrow_early
from neaptide.rewrite.linear import fuse_linear, fuse_matmul

__all__ = ["fuse_attention", "fuse_linear", "fuse_matmul", "narrow_early", "part_dropouts", "rewritten"]


def rewritten(module: fx.GraphModule) -> tuple[fx.GraphModule, tuple[str, ...]]:
    """A copy of a graph with attention fused and slices taken early, and what was done; nothing, where nothing was found."""
    copy = copied_module(module)
    done = (*fuse_attention(copy), *narrow_early(copy), *drop_known_masks(copy))
    if done:
        take_known_sizes(copy)
        sweep(copy)
    return copy, done
