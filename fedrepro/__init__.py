"""Reproducibility kit for ensemble distillation in federated learning."""

__version__ = "0.1.0"
