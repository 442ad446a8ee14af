from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrepro.models import NAMES, build, initialise, options_of, register, registry
from fedrepro.models.architecture import Architecture


class Mine(nn.Module):
    """A reader's own network, as it would stand in a notebook."""

    def __init__(self, classes: int, width: int = 4, rate: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3)
        self.scale = nn.Parameter(torch.rand(1))
        self.register_buffer("positions", torch.arange(3.0))
        self.output = nn.Linear(width, classes)
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.relu(self.first(x)), self.rate, self.training)
        logits: Tensor = self.output(self.scale * x.mean((2, 3)))
        return logits


@pytest.fixture(autouse=True)
def _register_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget after each test what it registered."""
    networks, names = dict(registry.NETWORKS), dict(NAMES)
    yield
    for table, old in ((registry.NETWORKS, networks), (NAMES, names)):
        table.clear()
        table.update(old)  # type: ignore[arg-type]


class TestRegistered:
    def test_it_can_be_made_and_started(self) -> None:
        before = torch.get_rng_state()
        register("mine", Mine, label="My network")
        assert NAMES["mine"] == "My network"
        architecture = Architecture("mine", 10, scheme="own")
        made = architecture.make()
        assert made(torch.zeros(2, 3, 8, 8)).shape == (2, 10)
        assert made.get_buffer("positions").tolist() == [0, 1, 2]
        start = architecture.start(0)
        assert torch.equal(start.params, architecture.start(0).params)
        assert not torch.equal(start.params, architecture.start(1).params)
        assert start.layout == architecture.layout
        assert hash(architecture) == hash(Architecture("mine", 10, scheme="own"))
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_function_and_known_layers(self) -> None:
        register("mine", lambda *, classes: nn.Sequential(nn.Flatten(), nn.Linear(12, classes)), input=(3, 2, 2))
        assert NAMES["mine"] == "mine"
        start = Architecture("mine", 10).start(0)
        module = nn.Sequential(nn.Flatten(), nn.Linear(12, 10))
        initialise(module, torch.Generator().manual_seed(0), scheme="xavier")
        assert start.params.shape == (1, 12 * 10 + 10)
        assert not start.named_params()["1.bias"].any()

    def test_options(self) -> None:
        register("mine", Mine, reads={"width": "hidden"})
        options = options_of("mine", {"hidden": 6, "norm": "batch"})
        assert options == {"width": 6}
        assert build("mine", classes=3, **options).get_parameter("first.weight").shape == (6, 3, 3, 3)
        with pytest.raises(ValueError, match=r"mine has no option 'widths' \(did you mean 'width'"):
            build("mine", classes=3, widths=2)

    def test_whether_it_draws(self) -> None:
        register("mine", Mine)
        assert not Architecture("mine", 10).random
        assert Architecture("mine", 10, (("rate", 0.5),)).random
        register("points", lambda *, classes: nn.Sequential(nn.Dropout(), nn.Linear(7, classes)), input=(7,))
        assert Architecture("points", 10).random

    def test_a_second_registration_is_another_architecture(self) -> None:
        register("mine", Mine)
        old = Architecture("mine", 10)
        assert not old.random
        register("mine", lambda *, classes: Mine(classes, width=5, rate=0.5), replace=True)
        new = Architecture("mine", 10)
        assert new != old
        assert new.random
        assert new.layout.params[1] == ("first.weight", (5, 3, 3, 3))
        with pytest.raises(ValueError, match="another network 'mine' was registered: make its Architecture anew"):
            old.make()


def shared(*, classes: int) -> nn.Module:
    one, two = nn.Linear(12, 12), nn.Linear(12, 12)
    two.weight = one.weight
    return nn.Sequential(nn.Flatten(), one, two, nn.Linear(12, classes))


def whole(*, classes: int) -> nn.Module:
    module = nn.Linear(12, classes)
    module.register_parameter("table", nn.Parameter(torch.arange(3), requires_grad=False))
    return nn.Sequential(nn.Flatten(), module)


def frozen(*, classes: int) -> nn.Module:
    module = nn.Linear(12, classes)
    module.bias.requires_grad_(False)
    return nn.Sequential(nn.Flatten(), module)


SAVED = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))


class TestRefusals:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (SAVED, "make must be a class or function that returns a network, got Sequential"),
            (lambda *, classes: 3, "make must return an nn.Module, got int"),
            (lambda *, num_classes: SAVED, "cannot be made with classes=3: TypeError: .*'classes'"),
            (lambda *, classes: SAVED, "must be a new network whenever it is made"),
            (shared, "1.weight and 2.weight are one parameter: parameters must not be shared"),
            (whole, "1.table is of type torch.int64: parameters must be of type torch.float32"),
            (frozen, "1.bias is frozen: what is not trained must be a buffer"),
            (lambda *, classes: nn.Sequential(nn.Flatten(), nn.LazyLinear(classes)), "1.weight has no shape yet"),
            (lambda *, classes: nn.Flatten(), "it has no parameters"),
            (lambda *, classes: nn.Linear(2, classes, device="meta"), "weight is on meta: .* made on the CPU"),
            (lambda *, classes: nn.Sequential(nn.Flatten(), nn.Linear(12, 10)), r"logits \[N, 3\], got \[2, 10\]"),
            (lambda *, classes: nn.GRU(2, classes), r"does not take inputs \[2, 3, 2, 2\].*: ValueError"),
        ],
    )
    def test_networks(self, make: Callable[..., nn.Module], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            register("mine", make, input=(3, 2, 2))
        assert "mine" not in NAMES
        assert "mine" not in registry.NETWORKS

    def test_a_start_from_elsewhere(self) -> None:
        source = torch.Generator().manual_seed(0)

        def make(*, classes: int) -> nn.Module:
            layer = nn.Linear(12, classes)
            nn.init.normal_(layer.weight, generator=source)
            return nn.Sequential(nn.Flatten(), layer)

        with pytest.raises(ValueError, match="mine must draw its start from torch's global generator"):
            register("mine", make, input=(3, 2, 2))

    @pytest.mark.parametrize("name", ["Mine", "my net", "timm/mine", "", "2net"])
    def test_names(self, name: str) -> None:
        with pytest.raises(ValueError, match="must be small letters, digits and underscores"):
            register(name, Mine)

    def test_taken_names(self) -> None:
        register("mine", Mine)
        with pytest.raises(
            ValueError, match="there is a network 'mine' already: choose another, or give replace=True"
        ):
            register("mine", Mine)
        for replace in (False, True):
            with pytest.raises(
                ValueError, match="there is a network 'resnet20' already: the library's own names stay"
            ):
                register("resnet20", Mine, replace=replace)

    def test_unknown_options(self) -> None:
        with pytest.raises(ValueError, match="mine has no option 'depth'"):
            register("mine", Mine, reads={"depth": "extra_layers"})
