"""Classifiers of timm and torchvision, without trained weights and with an optional stem for small images."""

from collections.abc import Callable, Mapping
from functools import lru_cache

import torch
from torch import nn

from fedrepro.core.extras import need
from fedrepro.core.names import nearest
from fedrepro.models.trial import seeded

STEMS = ("own", "small")
SIDE = 32  # of the images that a small stem has to take

# In training they return outputs of further classifiers too, which the methods here do not know.
_SINGLE: Mapping[str, Mapping[str, bool]] = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}


def _timm(name: str, classes: int) -> nn.Module:
    need(f"timm/{name}", "timm")
    import timm

    if name not in (known := timm.list_models()):
        raise ValueError(f"unknown network 'timm/{name}'{nearest(name, known)} in timm.list_models()")
    return timm.create_model(name, pretrained=False, num_classes=classes)


def _torchvision(name: str, classes: int) -> nn.Module:
    from torchvision import models

    if name not in (known := models.list_models(module=models)):
        raise ValueError(f"unknown network 'torchvision/{name}'{nearest(name, known)} in torchvision.models")
    return models.get_model(name, weights=None, num_classes=classes, **_SINGLE.get(name, {}))


SOURCES: Mapping[str, Callable[[str, int], nn.Module]] = {"timm": _timm, "torchvision": _torchvision}


def classifier(source: str, name: str, *, classes: int, stem: str = "own") -> nn.Module:
    """Make a classifier of a library; it draws its start from torch's global generator.

    Args:
        source: a key of `SOURCES`.
        name: the library's name of the network, without a tag of trained weights.
        classes: number of classes C, at least 1.
        stem: "own", or "small" (see `small_stem`).

    Returns:
        The library's module, from images `[N, 3, H, W]` to logits `[N, C]`.

    Raises:
        ValueError: if the library is not installed, does not know the name, or the stem does not fit.
    """
    if classes < 1:
        raise ValueError(f"classes must be at least 1, got {classes}")
    if stem not in STEMS:
        raise ValueError(f"stem must be one of {', '.join(STEMS)}, got {stem!r}")
    module = SOURCES[source](name, classes)
    if stem == "own":
        return module
    if reason := _misfit(source, name):
        raise ValueError(f"{source}/{name} has no small stem: {reason}")
    return small_stem(module)


def small_stem(module: nn.Module) -> nn.Module:
    """Make the first convolution 3x3 with stride 1, and the first max-pooling, if there is one, the identity.

    A first convolution that is 3x3 already keeps its weights; one of another size gives way to a new one with
    PyTorch's default start. This is what turns a network for 224x224 images into one for 32x32.

    Args:
        module: a network for images with three channels; changed in place.

    Returns:
        The same network.

    Raises:
        ValueError: if no convolution takes three channels.
    """
    layers = dict(module.named_modules())
    first = [
        (path, conv) for path, conv in layers.items() if isinstance(conv, nn.Conv2d) and conv.in_channels == 3
    ]
    if not first:
        raise ValueError(f"no convolution of {type(module).__name__} takes three channels")
    path, conv = first[0]
    if conv.kernel_size == (3, 3) and conv.padding == (1, 1):
        conv.stride = (1, 1)
    else:  # of the same class: some libraries' convolutions normalise their weights
        new = type(conv)(3, conv.out_channels, 3, stride=1, padding=1, bias=conv.bias is not None)
        _replace(module, path, new)
    pools = [path for path, layer in layers.items() if isinstance(layer, nn.MaxPool2d)]
    if pools:
        _replace(module, pools[0], nn.Identity())
    return module


def _replace(module: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, layer)


@lru_cache(maxsize=256)
def _misfit(source: str, name: str) -> str:
    """Return why a network with a small stem does not take 32x32 images, or "" where it does."""
    with seeded(0), torch.no_grad():
        try:
            module = small_stem(SOURCES[source](name, 2)).eval()
            module(torch.zeros(1, 3, SIDE, SIDE))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""
