"""The register of networks: how each is made, its name for people, and the settings that it reads."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from fedrepro.core.names import nearest
from fedrepro.models.convnet import ConvNet
from fedrepro.models.initialise import initialise
from fedrepro.models.layers import flaw
from fedrepro.models.mlp import MLP
from fedrepro.models.mobilenet import MobileNetV2
from fedrepro.models.resnet import ResNet
from fedrepro.models.shufflenet import shufflenetv2
from fedrepro.models.sources import SOURCES, classifier
from fedrepro.models.trial import attempt, seeded
from fedrepro.models.vgg import VGG9, SlimVGG9
from fedrepro.models.wrn import WideResNet

_NAMELESS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
RESNET_DEPTHS = (8, 14, 20, 26, 32, 44, 56, 110)


def _images(options: Mapping[str, Any]) -> tuple[int, ...]:
    return (3, 32, 32)


@dataclass(frozen=True)
class Network:
    """A kind of network.

    Args:
        make: class or function that makes it, with the keyword `classes` and its options as further keywords.
        label: its name for people.
        reads: option -> the setting that it takes its value from; other options keep their default.
        when: option -> (setting, value); the option counts only where the setting has the value.
        neutral: option -> the value that stands for "not given", which a setting may also leave out.
        shape: from given options to the shape of one input.
        bare: whether `make` may run without memory for weights, because `initialise` knows all its layers.
        number: which registration it comes from; 0 for the library's own networks.
    """

    make: Callable[..., nn.Module]
    label: str
    reads: Mapping[str, str] = field(default_factory=dict)
    when: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    neutral: Mapping[str, Any] = field(default_factory=dict)
    shape: Callable[[Mapping[str, Any]], tuple[int, ...]] = _images
    bare: bool = False
    number: int = 0

    @property
    def options(self) -> list[str]:
        """The names of its options, in the order of the signature."""
        fixed = self.make.keywords if isinstance(self.make, partial) else {}
        named = [p.name for p in inspect.signature(self.make).parameters.values() if p.kind not in _NAMELESS]
        return [name for name in named if name not in {"classes", *fixed}]


def _resnet(depth: int) -> Network:
    return Network(
        partial(ResNet, depth=depth),
        f"ResNet-{depth}",
        reads={"shortcut": "shortcut", "norm": "norm", "groups": "groups"},
        when={"groups": ("norm", "group")},
        bare=True,
    )


NETWORKS: dict[str, Network] = {
    "mlp": Network(
        MLP, "MLP", reads={"hidden": "hidden"}, shape=lambda options: (options.get("features", 2),), bare=True
    ),
    "convnet": Network(ConvNet, "ConvNet", reads={"extra_layers": "extra_layers"}, bare=True),
    **{f"resnet{depth}": _resnet(depth) for depth in RESNET_DEPTHS},
    "wrn16_2": Network(partial(WideResNet, depth=16, factor=2), "WRN-16-2", bare=True),
    "vgg9": Network(VGG9, "VGG-9", bare=True),
    "vgg9_slim": Network(SlimVGG9, "VGG-9 slim", bare=True),
    "mobilenetv2": Network(MobileNetV2, "MobileNetV2", bare=True),
    "shufflenetv2": Network(shufflenetv2, "ShuffleNetV2-1x", bare=True),
}
NAMES: dict[str, str] = {name: network.label for name, network in NETWORKS.items()}
_NUMBERS = count(1)


def find(name: str) -> Network:
    """Return the network of a name: registered, "timm/<name>" or "torchvision/<name>".

    Raises:
        ValueError: if nothing has the name; names of other libraries are looked up when they are made.
    """
    if name in NETWORKS:
        return NETWORKS[name]
    source, slash, rest = name.partition("/")
    if slash and source in SOURCES:
        make = partial(classifier, source, rest)
        return Network(make, name, reads={"stem": "stem"}, neutral={"stem": "own"})
    others = ", ".join(f"{source}/<name>" for source in SOURCES)
    raise ValueError(f"unknown network {name!r}{nearest(name, NETWORKS)}, {others}")


def build(name: str, *, classes: int, **options: int | str) -> nn.Module:
    """Return a network in float32 on the CPU, in training mode.

    Its weights are one fixed draw, the same in every call: `Architecture.start` gives a run its own.

    Args:
        name: short name, a key of `NAMES`, or "timm/<name>" or "torchvision/<name>".
        classes: number of classes C, at least 1.
        **options: "mlp": features (2), hidden (32); "convnet": extra_layers (0); "resnet…": shortcut ("A" or
            "B"; "A"), norm ("batch" or "group"; "batch"), groups (with norm="group" only); "vgg9": bias (True);
            "vgg9_slim": width (8); "mobilenetv2": shortcut ("projection" or "original"; "projection");
            "timm/…", "torchvision/…": stem ("own" or "small"; "own").

    Returns:
        A module from images `[N, 3, H, H]` ("mlp": features `[N, D]`) to logits `[N, C]`.

    Raises:
        ValueError: if the name or an option does not exist, or a value breaks the network's rules.
    """
    network = find(name)
    if not network.bare:
        return construct(name, 0, classes=classes, **options)
    _check_options(name, network, options)
    # On the meta device the constructors' own random initialisation draws nothing.
    with torch.device("meta"):
        module = network.make(classes=classes, **options)
    # Not to_empty: on this device empty_like is torch's Python reference, whose first call imports sympy.
    empty = {key: torch.empty(t.shape, dtype=t.dtype, device="cpu") for key, t in module.state_dict().items()}
    module.load_state_dict(empty, assign=True)
    initialise(module, torch.Generator().manual_seed(0), scheme="kaiming")
    return module


def construct(name: str, seed: int, /, *, classes: int, **options: int | str) -> nn.Module:
    """Return a network as its own constructor starts it, with torch's global generator seeded meanwhile.

    Args:
        name: as for `build`.
        seed: the constructor's seed, in [0, 2**64).
        classes: number of classes C, at least 1.
        **options: as for `build`.

    Raises:
        ValueError: as for `build`, and if the models of the network could not lie in a stack.
    """
    network = find(name)
    _check_options(name, network, options)
    with seeded(seed), torch.device("cpu"):
        module = network.make(classes=classes, **options)
    if reason := flaw(module):
        raise ValueError(f"{name} cannot be trained here: {reason}")
    return module


def options_of(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a network that a setting determines.

    Args:
        name: as for `build`.
        values: the setting, name -> value; more than the network reads is ignored.

    Raises:
        ValueError: if the name does not exist, or the setting lacks what the network reads.
    """
    network, found = find(name), {}
    for option, setting in network.reads.items():
        condition = network.when.get(option)
        if condition and values.get(condition[0]) != condition[1]:
            continue
        if option in network.neutral and values.get(setting, network.neutral[option]) == network.neutral[option]:
            continue
        if setting not in values:
            raise ValueError(f"{name} reads the setting {setting!r}, which is not there")
        found[option] = values[setting]
    return found


def register(
    name: str,
    make: Callable[..., nn.Module],
    *,
    label: str = "",
    reads: Mapping[str, str] | None = None,
    input: tuple[int, ...] = (3, 32, 32),
    replace: bool = False,
) -> None:
    """Give a network of one's own a name, under which every method takes it.

    It is made and tried once at once. Its models start with the scheme "own", or with "xavier" or "kaiming" where
    `initialise` knows all its layers.

    Args:
        name: short name: small letters, digits and underscores.
        make: a subclass of nn.Module or a function, `make(*, classes)`, that returns a new network from inputs
            [N, *input] to logits [N, classes]; other keywords, with defaults, are its options.
        label: its name for people; "" for `name`.
        reads: option -> the setting that it takes its value from.
        input: shape of one input.
        replace: whether a network that was registered under the name gives way.

    Raises:
        ValueError: if the name is taken or not of this form, or the network cannot be made or trained.
    """
    if not name.isidentifier() or name != name.lower():
        raise ValueError(f"a network's name must be small letters, digits and underscores, got {name!r}")
    known = NETWORKS.get(name)
    if known is not None and (known.number == 0 or not replace):
        rule = "choose another, or give replace=True" if known.number else "the library's own names stay"
        raise ValueError(f"there is a network {name!r} already: {rule}")
    if isinstance(make, nn.Module) or not callable(make):
        raise ValueError(f"make must be a class or function that returns a network, got {type(make).__name__}")
    shape = tuple(input)
    network = Network(
        make, label or name, reads=dict(reads or {}), shape=lambda options: shape, number=next(_NUMBERS)
    )
    _check_made(name, network, shape)
    NETWORKS[name], NAMES[name] = network, network.label


def _check_options(name: str, network: Network, options: Mapping[str, Any]) -> None:
    known = network.options
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}{nearest(option, known)}")


def _check_made(name: str, network: Network, shape: tuple[int, ...], classes: int = 3) -> None:
    """Make a network twice and try it; a ValueError says what is wrong."""
    _check_options(name, network, network.reads)
    made = []
    for _ in range(2):
        try:
            with seeded(0), torch.device("cpu"):
                made.append(network.make(classes=classes))
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise ValueError(f"{name} cannot be made with classes={classes}: {why}") from error
    one, other = made
    if not isinstance(one, nn.Module):
        raise ValueError(f"make must return an nn.Module, got {type(one).__name__}")
    if reason := flaw(one):
        raise ValueError(f"{name} cannot be trained here: {reason}")
    if one is other or any(a is b for a, b in zip(one.parameters(), other.parameters())):
        raise ValueError(f"{name} must be a new network whenever it is made, got the same parameters twice")
    if any(not torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters())):
        raise ValueError(f"{name} must draw its start from torch's global generator, got two starts of one seed")
    outputs = attempt(name, one, shape).outputs
    if not isinstance(outputs, Tensor) or outputs.shape != (2, classes):
        got = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(f"{name} must return logits [N, {classes}], got {got} for N = 2")
