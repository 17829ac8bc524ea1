"""The benchmark of inference inside a budget, in parts; `python benchmarks/chunk.py` runs it.

- `families`: the models, and the sizes they run at
- `experts`: what people do by hand to the same models
- `variants`: one way to run a family, and what a process of its own can say about it
- `processes`: those processes, and what they said before
- `sections`: the questions, each a row or a few for a family
- `layout`: the columns of each section
- `picture`: the rows as a drawing
"""
