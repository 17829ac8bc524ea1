"""Which parts of a graph to run in chunks (AutoChunk's question), and how large the chunks should be.

net.py        a graph as chunking sees it: who reads what, and along which axes each op can be done in parts
regions.py    from an op and an axis outwards: the largest legal region between two bounds
exactness.py  which ops give the same bits in parts
stretches.py  stretches of a graph that are alike, and share what is found in one of them
candidates.py the regions worth a look
forms.py      what a region takes, as rows over sizes
kinds.py      those of all kinds of regions in one table
weigh.py      the same in bytes and seconds, at one size
select.py     the fastest set of regions inside a budget; the smallest reachable peak
"""

from neaptide.search.chunk.candidates import candidates
from neaptide.search.chunk.net import Net
from neaptide.search.chunk.regions import Region
from neaptide.search.chunk.select import Selection, select

__all__ = ["Net", "Region", "Selection", "candidates", "select"]
