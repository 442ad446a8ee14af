"""Runs that go on where they were stopped, and their records."""
