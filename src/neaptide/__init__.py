"""Run any PyTorch model, inference or training, inside a memory budget given in bytes."""

__version__ = "0.1.0"
