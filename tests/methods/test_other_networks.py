"""Networks of readers and of other libraries, and several at once, play in every method and through whole runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrepro import models, papers
from fedrepro.core.rng import Streams
from fedrepro.core.setting import Setting
from fedrepro.federation.assemble import assemble
from fedrepro.methods.catalogue import METHODS, build
from fedrepro.runs.play import play
from fedrepro.runs.request import Run
from fedrepro.runs.store import Store

PLAYED = [name for name in METHODS if name != "centralized"]


class Mine(nn.Module):
    """What a reader may write in a notebook: a convolution, BatchNorm, dropout by a function."""

    def __init__(self, *, classes: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, stride=4), nn.BatchNorm2d(4)
        self.output = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.conv(x)))
        y = F.dropout(y.mean((2, 3)), 0.2, self.training)
        logits: Tensor = self.output(y)
        return logits


@pytest.fixture
def mine() -> Iterator[str]:
    models.register("mine", Mine, label="My network")
    yield "mine"
    del models.registry.NETWORKS["mine"], models.NAMES["mine"]


def setting(method: str, **changes: object) -> Setting:
    small = {"rounds": 2, "partition": "iid", "clients": 4, "client_images": 24, "public_images": 12}
    return tiny.setting(**{"method": method, "test_images": 20, **small, **changes})


@pytest.mark.parametrize("method", PLAYED)
def test_a_network_of_ones_own_plays_in_every_method(method: str, mine: str) -> None:
    chosen = setting(method, model=mine, initialisation="own")
    world, played = assemble(chosen, 0), build(chosen)
    assert world.architecture.random
    assert world.choice.engine == "plain"  # on any number of cores: threads share torch's random state
    ends = []
    for _ in range(2):
        begun = torch.get_rng_state()
        state, round = played.round(played.init(world, 0), world, Streams(0, 0))
        assert torch.equal(torch.get_rng_state(), begun)
        ends.append(state.models)
        assert not torch.equal(state.models.params, round.start.params[:1])
    assert tiny.same(*ends)


@pytest.mark.parametrize("model", ["torchvision/mobilenet_v3_small", "timm/test_vit", "wrn16_2"])
def test_networks_of_other_libraries_play(model: str) -> None:
    if model.startswith("timm"):
        pytest.importorskip("timm")
    stem = {"stem": "small"} if "mobilenet" in model else {}
    chosen = setting("fedbe", model=model, initialisation="own", clients=2, client_images=12, **stem)
    try:
        world = assemble(chosen, 0)
        world.start(0)
    except ValueError as error:
        pytest.skip(f"this version does not have it for 32x32 images: {error}")
    played = build(chosen)
    state, round = played.round(played.init(world, 0), world, Streams(0, 0))
    assert bool(state.models.params.isfinite().all())
    torch.testing.assert_close(round.targets.sum(1), torch.ones(len(world.public)))


class Stop(BaseException):
    """Ends a call as Ctrl-C would."""


@pytest.mark.parametrize("method", ["fedbe", "scaffold", "fedbe_fedavgm"])
def test_a_run_of_several_architectures_goes_on_to_the_same_bits(method: str, tmp_path: Path) -> None:
    run = Run(setting(method, model="resnet8+convnet", server_momentum=0.5), 0)
    straight = play(run, Store(tmp_path / "straight"))
    assert straight.record is not None, straight.error
    rows = straight.record["rows"]
    assert all(0 <= row["measured"]["accuracy of convnet"] <= 100 for row in rows)
    store = Store(tmp_path / "pieces")

    def stop(rounds: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        play(run, store, tick=stop)
    again = play(run, store)
    assert again.record is not None
    names = ("accuracy", "train_loss", "distill_loss", "measured")
    assert [[row[name] for name in names] for row in again.record["rows"]] == [
        [row[name] for name in names] for row in rows
    ]
    world = assemble(run.setting, 0)
    layouts = [one.architecture.layout for one in world.worlds]
    ends = [one.restore(straight.key, layouts, world.device) for one in (Store(tmp_path / "straight"), store)]
    for one, other in zip(ends[0].state.worlds, ends[1].state.worlds):  # type: ignore[union-attr]
        assert tiny.same(one.models, other.models)


def test_every_paper_names_networks_that_exist() -> None:
    for name in papers.names():
        paper = papers.load(name)
        found = {cell.setting.model for item in paper.items for cell in paper.cells(item, "paper")}
        assert found <= set(models.NAMES)
