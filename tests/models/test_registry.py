from typing import Any

import pytest
from torch import nn

from fedrepro.models import NAMES, build, options_of


class TestNames:
    def test_every_name_builds(self) -> None:
        for name, label in NAMES.items():
            assert isinstance(build(name, classes=2), nn.Module)
            assert label.lower().replace("-", "").replace(" ", "") in {name.replace("_", ""), f"{name}1x"}

    @pytest.mark.parametrize("name", ["resnet-20", "ResNet-20", "RESNET20"])
    def test_unknown_name(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"unknown network '.*' \(did you mean 'resnet20'\?\), timm/<name>"):
            build(name, classes=10)

    @pytest.mark.parametrize(
        ("name", "option", "nearest", "available"),
        [
            ("convnet", "extra_layer", "extra_layers", "extra_layers"),
            ("mlp", "width", "", "features, hidden"),
            ("resnet20", "norms", "norm", "shortcut, norm, groups"),
            ("resnet20", "depth", "", "shortcut, norm, groups"),
            ("mobilenetv2", "norm", "", "shortcut"),
            ("vgg9", "biases", "bias", "bias"),
            ("vgg9_slim", "widths", "width", "width"),
            ("torchvision/resnet18", "stems", "stem", "stem"),
        ],
    )
    def test_unknown_option(self, name: str, option: str, nearest: str, available: str) -> None:
        with pytest.raises(ValueError) as caught:
            build(name, classes=10, **{option: 1})
        assert f"{name} has no option '{option}'" in str(caught.value)
        told = f" (did you mean '{nearest}'?)" if nearest else f"; there are {available}"
        assert str(caught.value).endswith(told)

    @pytest.mark.parametrize("name", ["wrn16_2", "shufflenetv2"])
    def test_no_option(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"^{name} has no option 'depth'$"):
            build(name, classes=10, depth=1)

    @pytest.mark.parametrize(
        ("name", "options", "message"),
        [
            ("mlp", {"classes": 0}, "classes must be at least 1, got 0"),
            ("mlp", {"classes": 2, "hidden": 0}, "hidden must be at least 1, got 0"),
            (
                "convnet",
                {"classes": 2, "extra_layers": -1},
                "extra_layers must be at least 0 and at most 1000, got -1",
            ),
            ("resnet8", {"classes": 0}, "classes must be at least 1, got 0"),
            (
                "resnet8",
                {"classes": 2, "shortcut": "C"},
                "shortcut must be one of A, B, where_shapes_change, got 'C'",
            ),
            ("resnet8", {"classes": 2, "norm": "layer"}, "norm must be one of batch, group, got 'layer'"),
            ("resnet8", {"classes": 2, "norm": "group"}, "groups goes with norm='group'"),
            ("resnet8", {"classes": 2, "groups": 2}, "groups goes with norm='group'"),
            ("resnet8", {"classes": 2, "norm": "group", "groups": 3}, "groups must divide 16, got 3"),
            ("vgg9", {"classes": 0}, "classes must be at least 1, got 0"),
            ("vgg9_slim", {"classes": 2, "width": 0}, "width must be at least 1, got 0"),
            ("wrn16_2", {"classes": 0}, "classes must be at least 1, got 0"),
            ("shufflenetv2", {"classes": 0}, "classes must be at least 1, got 0"),
            ("torchvision/resnet18", {"classes": 0}, "classes must be at least 1, got 0"),
            ("torchvision/resnet18", {"classes": 2, "stem": "tiny"}, "stem must be one of own, small, got 'tiny'"),
            ("mobilenetv2", {"classes": 0}, "classes must be at least 1, got 0"),
            (
                "mobilenetv2",
                {"classes": 2, "shortcut": "A"},
                "shortcut must be one of projection, original, got 'A'",
            ),
        ],
    )
    def test_bad_values(self, name: str, options: dict[str, int], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            build(name, **options)


VALUES: dict[str, Any] = {
    "shortcut": "B",
    "norm": "batch",
    "groups": 4,
    "extra_layers": 2,
    "hidden": 5,
    "stem": "small",
    "seed": 0,
}


class TestOptionsOf:
    @pytest.mark.parametrize("norm", ["batch", "group"])
    @pytest.mark.parametrize("name", NAMES)
    def test_the_table_says_what_the_families_read(self, name: str, norm: str) -> None:
        expected: dict[str, Any] = {}
        if name.startswith("resnet"):
            expected = {"shortcut": "B", "norm": norm}
            if norm == "group":
                expected["groups"] = 4
        elif name == "convnet":
            expected = {"extra_layers": 2}
        elif name == "mlp":
            expected = {"hidden": 5}
        assert options_of(name, VALUES | {"norm": norm}) == expected

    def test_a_stem_counts_where_it_is_not_the_own(self) -> None:
        assert options_of("timm/resnet18", VALUES) == {"stem": "small"}
        assert options_of("timm/resnet18", VALUES | {"stem": "own"}) == {}
        assert options_of("torchvision/resnet18", {}) == {}

    def test_refusals(self) -> None:
        with pytest.raises(ValueError, match="convnet reads the setting 'extra_layers', which is not there"):
            options_of("convnet", {"hidden": 5})
        with pytest.raises(ValueError, match=r"unknown network 'convnets' \(did you mean 'convnet'"):
            options_of("convnets", VALUES)
