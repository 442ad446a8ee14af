"""The graph kernel: lanes in which members train, their recordings, and the sessions that keep them."""
