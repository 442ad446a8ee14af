"""Data sets, partitions, and the toy."""
