"""What a network consists of: its layers and parameters, looked at from outside."""

import torch
from torch import nn
from torch.nn.parameter import is_lazy

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def parameter_count(module: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether any layer is a BatchNorm, whose running statistics then need care on averaging."""
    return any(isinstance(layer, BATCH_NORMS) for layer in module.modules())


def flaw(module: nn.Module) -> str:
    """Return why the models of a network could not lie in a stack, or "" where they can.

    A stack holds all parameters of a model in one flat tensor that is trained and averaged as a whole.
    """
    seen: dict[int, str] = {}
    for name, value in (*module.named_parameters(remove_duplicate=False), *module.named_buffers()):
        if is_lazy(value):
            return f"{name} has no shape yet: give lazy layers their sizes"
        if value.device.type != "cpu":
            return f"{name} is on {value.device}: a network is made on the CPU"
        if not isinstance(value, nn.Parameter):
            continue
        if id(value) in seen:
            return f"{seen[id(value)]} and {name} are one parameter: parameters must not be shared between layers"
        seen[id(value)] = name
        if value.dtype != torch.float32:
            return f"{name} is of type {value.dtype}: parameters must be of type torch.float32"
        if not value.requires_grad:
            return f"{name} is frozen: what is not trained must be a buffer"
    return "" if seen else "it has no parameters"
