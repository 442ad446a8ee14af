"""The settings that choose a network and its options; which of them a network reads stands in the registry."""

from fedrepro.core.setting import REQUIRED, Option, among, declare

declare(
    model=Option(
        'name of a network, see `models.NAMES`; several joined by "+" are dealt out to the clients in turn',
        neutral=REQUIRED,
        example="convnet",
    ),
    initialisation=Option(
        "how models start, see `initialise`",
        neutral=REQUIRED,
        example="kaiming",
        must=among("xavier", "kaiming", "own"),
    ),
    shortcut=Option('shortcuts of a ResNet, "A", "B" or "where_shapes_change"', neutral="A", example="B"),
    norm=Option('norm layers of a ResNet, "batch" or "group"', neutral="batch", example="group"),
    groups=Option("groups of GroupNorm", neutral=2, example=4, where={"norm": "group"}),
    extra_layers=Option(
        "further convolutions of the ConvNet (FedBE's Figure 2)", neutral=0, example=1, where={"model": "convnet"}
    ),
    hidden=Option(
        "width of the toy's MLP",
        neutral=32,
        example=5,
        where={"data": "swiss_roll", "model": "mlp", "test_images": 30},
    ),
    stem=Option(
        'first layers of a network of timm or torchvision, its "own" or for "small" images',
        neutral="own",
        example="small",
        where={"model": "torchvision/resnet18"},
    ),
)
