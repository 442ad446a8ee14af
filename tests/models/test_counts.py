import pytest

from fedrepro.models import NAMES, build, parameter_count

# Trainable parameters, counted from the papers' layer lists, for 10 and 100 classes.
RESNET_COUNTS = {
    ("resnet8", "A"): (75_290, 81_140),
    ("resnet14", "A"): (172_506, 178_356),
    ("resnet20", "A"): (269_722, 275_572),
    ("resnet26", "A"): (366_938, 372_788),
    ("resnet32", "A"): (464_154, 470_004),
    ("resnet44", "A"): (658_586, 664_436),
    ("resnet56", "A"): (853_018, 858_868),
    ("resnet110", "A"): (1_727_962, 1_733_812),
    ("resnet8", "B"): (78_042, 83_892),
    ("resnet14", "B"): (175_258, 181_108),
    ("resnet20", "B"): (272_474, 278_324),
    ("resnet26", "B"): (369_690, 375_540),
    ("resnet32", "B"): (466_906, 472_756),
    ("resnet44", "B"): (661_338, 667_188),
    ("resnet56", "B"): (855_770, 861_620),
    ("resnet110", "B"): (1_730_714, 1_736_564),
    ("resnet8", "where_shapes_change"): (75_290, 81_140),
    ("resnet32", "where_shapes_change"): (464_154, 470_004),
}


class TestSizes:
    @pytest.mark.parametrize(("name", "shortcut"), RESNET_COUNTS)
    @pytest.mark.parametrize("norm", [{"norm": "batch"}, {"norm": "group", "groups": 2}])
    def test_resnet(self, name: str, shortcut: str, norm: dict[str, int | str]) -> None:
        counts = tuple(
            parameter_count(build(name, classes=classes, shortcut=shortcut, **norm)) for classes in (10, 100)
        )
        assert counts == RESNET_COUNTS[name, shortcut]

    def test_resnet20_for_tiny_imagenet(self) -> None:
        assert parameter_count(build("resnet20", classes=200, shortcut="A")) == 282_072

    @pytest.mark.parametrize(
        ("classes", "extra_layers", "count"),
        [(10, 0, 122_570), (100, 0, 128_420), (10, 1, 159_498), (10, 4, 270_282)],
    )
    def test_convnet(self, classes: int, extra_layers: int, count: int) -> None:
        assert parameter_count(build("convnet", classes=classes, extra_layers=extra_layers)) == count

    @pytest.mark.parametrize(
        ("classes", "options", "count"),
        [
            (10, {}, 2_296_922),
            (100, {"shortcut": "projection"}, 2_412_212),
            (200, {}, 2_540_312),
            (10, {"shortcut": "original"}, 2_236_682),
            (100, {"shortcut": "original"}, 2_351_972),
        ],
    )
    def test_mobilenetv2(self, classes: int, options: dict[str, int | str], count: int) -> None:
        assert parameter_count(build("mobilenetv2", classes=classes, **options)) == count

    @pytest.mark.parametrize(
        ("name", "options", "counts"),
        [
            ("wrn16_2", {}, {10: 691_674, 100: 703_284}),
            ("vgg9", {}, {10: 3_491_530, 100: 3_491_530 + 90 * 513}),
            ("vgg9", {"bias": False}, {10: 3_490_666}),
            ("vgg9_slim", {}, {10: 2_308_810, 100: 2_308_810 + 90 * 257}),
            ("vgg9_slim", {"width": 16}, {10: 9_225_610}),
            ("shufflenetv2", {}, {10: 1_263_854, 100: 1_356_104, 1000: 2_278_604}),
            ("resnet32", {"shortcut": "B"}, {1000: 531_256}),
        ],
    )
    def test_others(self, name: str, options: dict[str, int | str], counts: dict[int, int]) -> None:
        found = {classes: parameter_count(build(name, classes=classes, **options)) for classes in counts}
        assert found == counts

    def test_every_network_is_counted(self) -> None:
        counted = {name for name, _ in RESNET_COUNTS}
        assert counted | {"mlp", "convnet", "mobilenetv2", "wrn16_2", "vgg9", "vgg9_slim", "shufflenetv2"} == set(
            NAMES
        )

    def test_mlp(self) -> None:
        assert parameter_count(build("mlp", classes=3)) == 2 * 32 + 32 + 32 * 3 + 3
        assert parameter_count(build("mlp", classes=3, features=5, hidden=4)) == 5 * 4 + 4 + 4 * 3 + 3

    def test_frozen_parameters_do_not_count(self) -> None:
        model = build("mlp", classes=3)
        model.get_parameter("output.bias").requires_grad_(False)
        assert parameter_count(model) == 2 * 32 + 32 + 32 * 3
