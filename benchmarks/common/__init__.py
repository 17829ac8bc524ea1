"""What several benchmarks share: processes of their own, and pictures."""
