"""Checkpointing that follows the input, for models that run eagerly: no graph is needed.

    blocks.py     a model              -> Units        which modules can be told to keep less, and the switch in each
    strengths.py  a unit's forward     -> its result   kept whole, in parts, selectively, sent away, or made again
    observe.py    one sheltered step   -> Record       every storage's life, and whose it was; on fakes or for real
    figures.py    Record, sizes        -> Figures      what each call takes and leaves behind, kept or not
    predict.py    Records, new sizes   -> Figures      without running anything
    choose.py     Figures, budget      -> Ways         by `search/chain`
    adapt.py      a model and a budget -> Handle       all of it, at every call

The idea that checkpointing should follow the size of the input, planned online, is Mimose's (arXiv 2209.02478).
"""
