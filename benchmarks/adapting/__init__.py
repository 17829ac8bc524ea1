"""What `benchmarks/adapt.py` is made of: streams of batches, and rivals' choices."""
