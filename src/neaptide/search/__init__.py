"""Decides, never changes a graph: each module proposes actions of one kind."""
