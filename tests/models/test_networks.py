import pytest
import torch
import torch.nn.functional as F
from network_cases import LARGE, SMALL, example, seeded
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedrepro.models import NAMES, build, has_batch_norm, initialise


class TestForward:
    @pytest.mark.parametrize("name", NAMES)
    def test_every_parameter_has_a_gradient(self, name: str) -> None:
        model = build(name, classes=7)
        logits = model(example(name, 2))
        assert logits.shape == (2, 7)
        assert logits.isfinite().all()
        F.cross_entropy(logits, torch.tensor([0, 1])).backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None, key
            assert parameter.grad.any(), key

    @pytest.mark.parametrize("name", ["vgg9", "vgg9_slim"])
    def test_vgg_refuses_other_sizes(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"takes images \[N, 3, 32, 32\], got \[2, 3, 64, 64\]"):
            build(name, classes=10)(torch.zeros(2, 3, 64, 64))

    @pytest.mark.parametrize("extra_layers", [0, 2])
    def test_convnet(self, extra_layers: int) -> None:
        assert build("convnet", classes=7, extra_layers=extra_layers)(example("convnet", 2)).shape == (2, 7)

    def test_convnet_refuses_other_sizes(self) -> None:
        with pytest.raises(ValueError, match=r"takes images \[N, 3, 32, 32\], got \[2, 3, 64, 64\]"):
            build("convnet", classes=10)(torch.zeros(2, 3, 64, 64))

    def test_mlp_by_hand(self) -> None:
        model = build("mlp", classes=2, features=2, hidden=3)
        model.load_state_dict(
            {
                "hidden.weight": torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]),
                "hidden.bias": torch.tensor([0.0, 1.0, 0.5]),
                "output.weight": torch.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 1.0]]),
                "output.bias": torch.tensor([0.5, 0.0]),
            }
        )
        # [2, -3]: hidden (2, -2, 1.5) -> (2, 0, 1.5); [-1, 1]: hidden (-1, 2, 0.5) -> (0, 2, 0.5).
        logits = model(torch.tensor([[2.0, -3.0], [-1.0, 1.0]]))
        assert logits.tolist() == [[2 + 4.5 + 0.5, 1.5], [4 + 1.5 + 0.5, -2 + 0.5]]

    def test_mlp_flattens_images(self) -> None:
        assert build("mlp", classes=3, features=3 * 8 * 8)(torch.zeros(5, 3, 8, 8)).shape == (5, 3)

    def test_only_the_norms_depend_on_the_mode(self) -> None:
        images = example("resnet8", 4)
        grouped = build("resnet8", classes=10, norm="group", groups=4)
        assert torch.equal(grouped(images), grouped.eval()(images))
        batched = build("resnet8", classes=10)
        assert not torch.allclose(batched(images), batched.eval()(images))


class TestNorms:
    def test_group_norm_has_no_state(self) -> None:
        grouped = build("resnet20", classes=10, norm="group", groups=2)
        assert not list(grouped.buffers())
        assert not has_batch_norm(grouped)
        groups = {layer.num_groups for layer in grouped.modules() if isinstance(layer, nn.GroupNorm)}
        assert groups == {2}

    def test_batch_norm_is_found(self) -> None:
        assert has_batch_norm(build("resnet20", classes=10))
        assert has_batch_norm(build("mobilenetv2", classes=10))
        assert not has_batch_norm(build("convnet", classes=10))
        assert not has_batch_norm(build("mlp", classes=10))


class TestMemoryFormat:
    @pytest.mark.parametrize(("name", "options"), [*SMALL[1:], *LARGE])
    def test_channels_last_is_kept(self, name: str, options: dict[str, int | str]) -> None:
        model = build(name, classes=10, **options).to(memory_format=torch.channels_last)
        activations: list[bool] = []
        gradients: list[bool] = []

        def watch(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if output.ndim == 4:
                activations.append(output.is_contiguous(memory_format=torch.channels_last))
                output.register_hook(
                    lambda gradient: gradients.append(gradient.is_contiguous(memory_format=torch.channels_last))
                )

        for layer in model.modules():
            layer.register_forward_hook(watch)
        x = example(name, 4)
        logits = model(x.to(memory_format=torch.channels_last))
        F.cross_entropy(logits, torch.tensor([0, 1, 2, 3])).backward()
        assert len(activations) == len(gradients) >= 4
        assert all(activations)
        assert all(gradients)
        if name != "vgg9":  # whose dropout draws anew
            torch.testing.assert_close(logits, build(name, classes=10, **options)(x), rtol=1e-4, atol=1e-5)


class TestTransforms:
    @pytest.mark.parametrize(("name", "options"), SMALL)
    @pytest.mark.parametrize("training", [True, False])
    def test_vmap_over_models(self, name: str, options: dict[str, int | str], training: bool) -> None:
        models = [build(name, classes=3, **options).double().train(training) for _ in range(2)]
        for seed, model in enumerate(models):
            initialise(model, seeded(seed), scheme="xavier")
        skeleton = build(name, classes=3, **options).double().train(training)
        params, buffers = stack_module_state(models)
        x = torch.stack([example(name, 4, torch.float64), 2 * example(name, 4, torch.float64)])
        targets = torch.tensor([0, 1, 2, 0])

        def loss(params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(skeleton, (params, buffers), (x,)), targets)

        grads = vmap(grad(loss))(params, buffers, x)
        for member, model in enumerate(models):
            F.cross_entropy(model(x[member]), targets).backward()
            for key, parameter in model.named_parameters():
                torch.testing.assert_close(grads[key][member], parameter.grad)
            for key, buffer in model.named_buffers():
                torch.testing.assert_close(buffers[key][member], buffer)

    @pytest.mark.parametrize(("name", "options"), SMALL)
    def test_one_graph_without_breaks(self, name: str, options: dict[str, int | str]) -> None:
        model = build(name, classes=3, **options).eval()
        x = example(name, 2)
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x), model(x))
