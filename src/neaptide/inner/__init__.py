"""Fused kernels inside a plan: stretches of a program compiled by inductor, each judged by what its code will allocate."""
