import pytest
import tiny
import torch

from fedrepro import models
from fedrepro.core.stack import Layout, Stack, concatenate, mix


def modules(count: int, **options: str | int) -> list[torch.nn.Module]:
    made = [models.build("resnet8", classes=3, **options) for _ in range(count)]
    for seed, module in enumerate(made):
        models.initialise(module, tiny.seeded(seed), scheme="xavier")
        for number, (name, buffer) in enumerate(module.named_buffers()):
            buffer.fill_(10 * seed + number + (0 if name.endswith("tracked") else 0.5))
    return made


class TestLayout:
    def test_resnet8(self) -> None:
        layout = Layout.of(models.build("resnet8", classes=10))
        assert Layout.size(layout.params) == 75_290
        # Seven BatchNorms: one of 16 channels in the stem, two each of 16, 32 and 64.
        assert Layout.size(layout.buffers) == 2 * (16 + 2 * (16 + 32 + 64))
        assert len(layout.counters) == Layout.size(layout.counters) == 7
        assert not {name for name, _ in layout.params} & {name for name, _ in layout.buffers}

    def test_views_share_memory_and_keep_the_order(self) -> None:
        flat = torch.arange(14.0).view(2, 7)
        entries = (("a", (2, 2)), ("b", ()), ("c", (2,)))
        views = dict(Layout.views(flat, entries))
        assert views["a"].tolist() == [[[0, 1], [2, 3]], [[7, 8], [9, 10]]]
        assert views["b"].flatten().tolist() == [4, 11]
        assert views["c"].tolist() == [[5, 6], [12, 13]]
        views["c"][1, 0] = -1.0
        assert flat[1, 5] == -1.0


class TestStack:
    @pytest.mark.parametrize("options", [{}, {"shortcut": "B"}, {"norm": "group", "groups": 2}])
    def test_a_module_survives_the_way_there_and_back(self, options: dict[str, str | int]) -> None:
        sources = modules(3, **options)
        sources[1] = sources[1].to(memory_format=torch.channels_last)
        stack = Stack.of(*sources)
        target = models.build("resnet8", classes=3, **options).to(memory_format=torch.channels_last)
        for member, source in enumerate(sources):
            stack.load(member, target)
            found, wanted = target.state_dict(), source.state_dict()
            assert found.keys() == wanted.keys()
            assert all(torch.equal(found[name], wanted[name]) for name in wanted)
            assert all(found[name].dtype == wanted[name].dtype for name in wanted)
        assert target.get_parameter("stem.weight").is_contiguous(memory_format=torch.channels_last)

    def test_members_are_copies(self) -> None:
        source = modules(1)[0]
        stack = Stack.of(source)
        before = tiny.copied(stack)
        with torch.no_grad():
            for tensor in source.state_dict().values():
                tensor.zero_()
        assert tiny.same(stack, before)

    def test_names_find_their_values(self) -> None:
        stack = tiny.stack([[1, 2], [3, 4]], [[5, 6], [7, 8]], [9, 10])
        assert stack.named_params()["weight"].tolist() == [[1, 2], [3, 4]]
        assert stack.named_buffers()["norm.running_var"].tolist() == [[6], [8]]
        assert len(stack) == 2

    def test_take_copies_by_index_and_looks_by_slice(self) -> None:
        stack = tiny.stack([[1, 2], [3, 4], [5, 6]], [[1, 1], [2, 2], [3, 3]], [1, 2, 3])
        twice = stack.take([2, 0, 2])
        assert twice.params.tolist() == [[5, 6], [1, 2], [5, 6]]
        assert twice.buffers.tolist() == [[3, 3], [1, 1], [3, 3]]
        assert twice.counters.tolist() == [[3], [1], [3]]
        twice.params.zero_()
        assert stack.params.sum() == 21
        assert len(stack.take(slice(0, 0))) == 0

    def test_a_change_of_dtype_leaves_counters_alone(self) -> None:
        stack = tiny.stack([[1, 2]], [[0.5, 1.5]], [2**40 + 1]).to(dtype=torch.float32)
        assert stack.params.dtype == stack.buffers.dtype == torch.float32
        assert stack.counters.dtype == torch.int64
        assert stack.counters.item() == 2**40 + 1  # float32 could not hold it

    def test_tensors_that_do_not_fit_are_refused(self) -> None:
        good = tiny.stack([[1, 2], [3, 4]])
        with pytest.raises(ValueError, match=r"params must have shape .* = \(2, 2\), got \(2, 3\)"):
            Stack(good.layout, torch.zeros(2, 3), good.buffers, good.counters)
        with pytest.raises(ValueError, match=r"buffers must have shape .* = \(2, 2\), got \(1, 2\)"):
            Stack(good.layout, good.params, good.buffers[:1], good.counters)
        with pytest.raises(ValueError, match="counters must be int64"):
            Stack(good.layout, good.params, good.buffers, good.counters.float())
        with pytest.raises(ValueError, match="counters must be int64"):
            Stack(good.layout, good.params, good.buffers, good.counters[:1])


class TestConcatenate:
    def test_order(self) -> None:
        one, two = tiny.stack([[1, 2]], counters=[4]), tiny.stack([[3, 4], [5, 6]], counters=[5, 6])
        joined = concatenate([two, one, two.take(slice(0, 0))])
        assert joined.params.tolist() == [[3, 4], [5, 6], [1, 2]]
        assert joined.counters.flatten().tolist() == [5, 6, 4]

    def test_different_architectures_are_refused(self) -> None:
        other = Stack.of(models.build("mlp", classes=3))
        with pytest.raises(ValueError, match="different architectures"):
            concatenate([tiny.stack([[1, 2]]), other])


class TestMix:
    def test_by_hand(self) -> None:
        clients = tiny.stack([[1, 2], [5, 10]], [[0, 1], [4, 3]], [3, 7])
        mixed = mix(torch.tensor([[0.25, 0.75], [1, 0], [0, 1]]), clients)
        # 1/4 * 1 + 3/4 * 5 = 4 and 1/4 * 2 + 3/4 * 10 = 8; statistics 3 and 2.5 with the same weights.
        assert mixed.params.tolist() == [[4, 8], [1, 2], [5, 10]]
        assert mixed.buffers.tolist() == [[3, 2.5], [0, 1], [4, 3]]
        # The largest count among the members used: both, the first, the second.
        assert mixed.counters.flatten().tolist() == [7, 3, 7]
        assert mixed.counters.dtype == torch.int64

    def test_any_real_weights(self) -> None:
        mixed = mix(torch.tensor([[2.0, -1.0]]), tiny.stack([[1, 2], [5, 10]]))
        assert mixed.params.tolist() == [[-3, -6]]  # 2 * 1 - 5 and 2 * 2 - 10

    def test_the_average_is_exact_and_in_the_members_dtype(self) -> None:
        clients = tiny.stack([[0.1, 0.3], [0.7, -0.2], [0.5, 0.9]])
        weights = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
        # 0.02 + 0.21 + 0.25 = 0.48 and 0.06 - 0.06 + 0.45 = 0.45
        expected = torch.tensor([0.48, 0.45], dtype=torch.float64)
        torch.testing.assert_close(mix(weights, clients).params[0], expected, rtol=1e-15, atol=0)
        assert mix(weights, clients.to(dtype=torch.float32)).params.dtype == torch.float32

    def test_no_outputs_and_no_buffers(self) -> None:
        clients = tiny.stack([[1, 2], [5, 10]])
        assert len(mix(torch.zeros(0, 2), clients)) == 0
        plain = Stack.of(*(models.build("resnet8", classes=3, norm="group", groups=2) for _ in range(2)))
        assert plain.buffers.shape == plain.counters.shape == (2, 0)
        assert mix(torch.full((1, 2), 0.5), plain).buffers.shape == (1, 0)

    @pytest.mark.parametrize("shape", [(2,), (1, 3), (1, 1, 2)])
    def test_weights_without_a_column_per_member_are_refused(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"weights must be \[outputs, 2 members\], got"):
            mix(torch.ones(shape), tiny.stack([[1, 2], [3, 4]]))


class TestMembersOfWeightZero:
    """They play no part, whatever their values: a client that diverged can be left out."""

    good, bad = [1.0, 2.0], [float("nan"), float("inf")]

    def test_values_that_are_not_finite(self) -> None:
        members = tiny.stack([self.good, self.bad, [3.0, 6.0]], [[0, 1], [float("nan"), 1], [2, 3]], [5, 9, 7])
        weights = torch.tensor([[0.5, 0.0, 0.5], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
        found = mix(weights, members)
        assert found.params.tolist() == [[2.0, 4.0], [1.0, 2.0], [0.0, 0.0]]
        assert found.buffers.tolist() == [[1.0, 2.0], [0.0, 1.0], [0.0, 0.0]]
        assert found.counters[:, 0].tolist() == [7, 5, 0]
        assert bool(mix(torch.tensor([[0.5, 0.5, 0.0]]), members).params.isnan().any())

    def test_no_outputs(self) -> None:
        members = tiny.stack([self.good, self.bad])
        assert len(mix(torch.zeros(0, 2), members)) == 0
