"""The ground: stacks of models, states, random streams, settings, names, files and paths."""
