"""Networks by name, and the state they start from.

`build` gives the architecture, `initialise` its starting point; neither touches a global random state.
"""

import difflib
import inspect
import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from fedrepro.models.convnet import ConvNet
from fedrepro.models.mlp import MLP
from fedrepro.models.mobilenet import MobileNetV2
from fedrepro.models.resnet import ResNet

__all__ = ["NAMES", "SCHEMES", "build", "has_batch_norm", "initialise", "parameter_count"]

NAMES: dict[str, str] = {
    "mlp": "MLP",
    "convnet": "ConvNet",
    "resnet8": "ResNet-8",
    "resnet20": "ResNet-20",
    "resnet32": "ResNet-32",
    "resnet44": "ResNet-44",
    "resnet56": "ResNet-56",
    "mobilenetv2": "MobileNetV2",
}
SCHEMES = ("xavier", "kaiming")

_NETWORKS: dict[str, tuple[type[nn.Module], dict[str, int]]] = {
    "mlp": (MLP, {}),
    "convnet": (ConvNet, {}),
    **{f"resnet{depth}": (ResNet, {"depth": depth}) for depth in (8, 20, 32, 44, 56)},
    "mobilenetv2": (MobileNetV2, {}),
}
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def build(name: str, *, classes: int, **options: int | str) -> nn.Module:
    """Return a network in float32 on the CPU, in training mode.

    Its weights are one fixed draw, the same in every call: `initialise` gives a run its own.

    Args:
        name: short name, a key of `NAMES`.
        classes: number of classes C, at least 1.
        **options: "mlp": features (2), hidden (32); "convnet": extra_layers (0); "resnet…": shortcut ("A" or
            "B"; "A"), norm ("batch" or "group"; "batch"), groups (with norm="group" only); "mobilenetv2": shortcut
            ("projection" or "original"; "projection").

    Returns:
        A module from images `[N, 3, H, H]` ("mlp": features `[N, D]`) to logits `[N, C]`.

    Raises:
        ValueError: if the name or an option does not exist, or a value breaks the network's rules.
    """
    if name not in _NETWORKS:
        raise ValueError(f"unknown network {name!r}{_nearest(name, _NETWORKS)}")
    network, fixed = _NETWORKS[name]
    known = [option for option in inspect.signature(network).parameters if option not in {"classes", *fixed}]
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}{_nearest(option, known)}")
    # On the meta device the constructors' own random initialisation draws nothing.
    with torch.device("meta"):
        module = network(classes=classes, **fixed, **options)
    module.to_empty(device="cpu")
    initialise(module, torch.Generator().manual_seed(0), scheme="kaiming")
    return module


def initialise(module: nn.Module, generator: torch.Generator, *, scheme: str) -> None:
    """Overwrite all parameters and buffers of a network with a starting point drawn from `generator`.

    "xavier": weights of convolutions and linear layers uniform within `sqrt(6 / (fan_in + fan_out))` (Glorot
    and Bengio 2010, eq. 16), biases 0, as FedBE's released code does for all its networks.
    "kaiming": convolutions normal with variance `2 / (k * k * out)` (He et al. 2015, eq. 14), their biases 0;
    linear weights and biases uniform within `1 / sqrt(fan_in)`, PyTorch's default.
    In both, norm layers start as the identity: weight 1, bias 0, running mean 0, running variance 1. Layers
    draw in the order of `module.modules()`, in float32, so that the values do not depend on the module's
    dtype, device or memory format.

    Args:
        module: network of Conv2d, Linear, BatchNorm and GroupNorm layers; changed in place.
        generator: generator on the CPU; the only source of randomness.
        scheme: "xavier" or "kaiming".

    Raises:
        ValueError: if the scheme does not exist, the generator is not on the CPU, or a layer of another kind
            holds parameters or buffers.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"unknown scheme {scheme!r}{_nearest(scheme, SCHEMES)}")
    if generator.device.type != "cpu":
        raise ValueError(f"generator must be on the CPU, got {generator.device}")
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            _initialise_weights(layer, generator, scheme)
        elif isinstance(layer, (*_BATCH_NORMS, nn.GroupNorm)):
            layer.reset_parameters()  # the identity, without a draw
        elif [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]:
            raise ValueError(f"initialise knows Conv2d, Linear, BatchNorm, GroupNorm, got {type(layer).__name__}")


def parameter_count(module: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether any layer is a BatchNorm, whose running statistics then need care on averaging."""
    return any(isinstance(layer, _BATCH_NORMS) for layer in module.modules())


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


def _uniform(like: Tensor, bound: float, generator: torch.Generator) -> Tensor:
    return torch.empty(like.shape, dtype=torch.float32).uniform_(-bound, bound, generator=generator)


def _nearest(word: str, known: Iterable[str]) -> str:
    known = list(known)
    matcher = difflib.SequenceMatcher(b=word.lower())
    ratios = []
    for candidate in known:
        matcher.set_seq1(candidate)
        ratios.append(matcher.ratio())
    return f"; nearest match: {known[ratios.index(max(ratios))]!r}; available: {', '.join(known)}"
