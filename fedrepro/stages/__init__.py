"""The seven stages of a round, one module each, and what a round is."""
