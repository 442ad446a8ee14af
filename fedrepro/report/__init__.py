"""Recorded numbers beside the paper's, and the report of them."""
