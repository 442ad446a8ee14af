"""Starting points of networks, drawn from a generator and from nothing else."""

import math

import torch
from torch import Tensor, nn

from fedrepro.core.names import nearest
from fedrepro.models.layers import BATCH_NORMS

SCHEMES = ("xavier", "kaiming", "own")
EMBEDDING_STD = 0.02  # as in BERT's initialisation (Devlin et al. 2019)

_NORMS = (*BATCH_NORMS, nn.GroupNorm, nn.LayerNorm)
_DRAWN = (nn.Conv2d, nn.Linear, nn.Embedding)
_KNOWN = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}


def initialise(module: nn.Module, generator: torch.Generator, *, scheme: str) -> None:
    """Overwrite all parameters and buffers of a network with a starting point drawn from `generator`.

    "xavier": weights of convolutions and linear layers uniform within `sqrt(6 / (fan_in + fan_out))` (Glorot
    and Bengio 2010, eq. 16), biases 0, as FedBE's released code does for all its networks.
    "kaiming": convolutions normal with variance `2 / (k * k * out)` (He et al. 2015, eq. 14), their biases 0;
    linear weights and biases uniform within `1 / sqrt(fan_in)`, PyTorch's default.
    In both, norm layers start as the identity: weight 1, bias 0, running mean 0, running variance 1, and
    embeddings normal with standard deviation 0.02, the padding row 0. Layers draw in the order of
    `module.modules()`, in float32, so that the values do not depend on the module's dtype, device or memory
    format.
    "own", what the network's constructor draws, needs the constructor: see `Architecture.start`.

    Args:
        module: network of Conv2d, Linear, Embedding, BatchNorm, GroupNorm and LayerNorm layers; changed in place.
        generator: generator on the CPU; the only source of randomness.
        scheme: "xavier" or "kaiming".

    Raises:
        ValueError: if the scheme does not exist or is "own", the generator is not on the CPU, or a layer of
            another kind holds parameters or buffers.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"unknown scheme {scheme!r}{nearest(scheme, SCHEMES)}")
    if scheme == "own":
        raise ValueError("the scheme 'own' makes the network anew, with Architecture.start; initialise cannot")
    if generator.device.type != "cpu":
        raise ValueError(f"generator must be on the CPU, got {generator.device}")
    for layer in module.modules():
        _check(layer)
        if isinstance(layer, nn.Conv2d | nn.Linear):
            _initialise_weights(layer, generator, scheme)
        elif isinstance(layer, nn.Embedding):
            _initialise_rows(layer, generator)
        elif isinstance(layer, _NORMS):
            layer.reset_parameters()  # the identity, without a draw


def _check(layer: nn.Module) -> None:
    held = {name for name, _ in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))}
    if held <= _KNOWN and (not held or isinstance(layer, (*_DRAWN, *_NORMS))):
        return
    raise ValueError(
        "xavier and kaiming know Conv2d, Linear, Embedding, BatchNorm, GroupNorm and LayerNorm, got "
        f"{type(layer).__name__} with {', '.join(sorted(held))}; the scheme 'own' takes the network's own start"
    )


def _initialise_weights(layer: nn.Conv2d | nn.Linear, generator: torch.Generator, scheme: str) -> None:
    fan_in = layer.weight[0].numel()
    fan_out = layer.weight.shape[0] * math.prod(layer.weight.shape[2:])
    bias_bound = 0.0
    if scheme == "xavier":
        weight = _uniform(layer.weight, math.sqrt(6 / (fan_in + fan_out)), generator)
    elif isinstance(layer, nn.Conv2d):
        weight = torch.empty(layer.weight.shape, dtype=torch.float32)
        weight.normal_(0.0, math.sqrt(2 / fan_out), generator=generator)
    else:
        bias_bound = 1 / math.sqrt(fan_in)
        weight = _uniform(layer.weight, bias_bound, generator)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if layer.bias is not None:
            layer.bias.copy_(_uniform(layer.bias, bias_bound, generator) if bias_bound else torch.zeros(()))


def _initialise_rows(layer: nn.Embedding, generator: torch.Generator) -> None:
    rows = torch.empty(layer.weight.shape, dtype=torch.float32)
    rows.normal_(0.0, EMBEDDING_STD, generator=generator)
    if layer.padding_idx is not None:
        rows[layer.padding_idx] = 0.0
    with torch.no_grad():
        layer.weight.copy_(rows)


def _uniform(like: Tensor, bound: float, generator: torch.Generator) -> Tensor:
    return torch.empty(like.shape, dtype=torch.float32).uniform_(-bound, bound, generator=generator)
