"""Kernels: everything that trains or runs networks. `plain` is the reference that others must agree with."""
