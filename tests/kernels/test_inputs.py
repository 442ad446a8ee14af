import itertools
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

from fedrepro.kernels.batches import NO_AUGMENT, Augment, batch_plan
from fedrepro.kernels.inputs import augmented, crop_and_flip, inputs
from fedrepro.kernels.step import Sgd, Step


def test_every_crop_and_flip_against_a_slow_loop() -> None:
    pad = 2
    cases = list(itertools.product(range(2 * pad + 1), range(2 * pad + 1), (False, True)))
    images = tiny.images(len(cases), height=5, width=7).images  # not square: no axes can be swapped
    shift = torch.tensor([[down, right] for down, right, _ in cases], dtype=torch.uint8)
    flip = torch.tensor([mirrored for _, _, mirrored in cases])
    found = crop_and_flip(images, shift, flip, pad=pad)
    assert found.dtype == torch.uint8
    for image, out, (down, right, mirrored) in zip(images.numpy(), found.numpy(), cases):
        assert np.array_equal(out, tiny.slow_crop_and_flip(image, down, right, mirrored, pad))


def test_by_hand() -> None:
    # One row of three pixels 1 2 3, padded by one: 0 1 2 3 0, with a black row above and below.
    row = torch.tensor([1, 2, 3], dtype=torch.uint8)[None, None, :, None].expand(5, 1, 3, 3)
    shift = torch.tensor([[1, 1], [1, 0], [1, 2], [1, 2], [0, 1]], dtype=torch.uint8)
    flip = torch.tensor([False, False, False, True, False])
    found = crop_and_flip(row, shift, flip, pad=1)[:, 0, :, 0]
    assert found.tolist() == [[1, 2, 3], [0, 1, 2], [2, 3, 0], [0, 3, 2], [0, 0, 0]]


def test_the_middle_offset_is_the_image_itself() -> None:
    images = tiny.images(4).images
    middle = torch.full((4, 2), 3, dtype=torch.uint8)
    assert torch.equal(crop_and_flip(images, middle, torch.zeros(4, dtype=torch.bool), pad=3), images)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pixels_are_normalised_channel_by_channel(dtype: torch.dtype) -> None:
    data = tiny.images(6, height=5, width=7)
    index = torch.tensor([4, 1, 1])
    found = inputs(data, index, dtype=dtype)
    expected = np.stack([tiny.slow_inputs(data.images[i].numpy()) for i in index])
    assert found.shape == (3, 3, 5, 7)
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    tolerance = 1e-13 if dtype == torch.float64 else 2e-6
    torch.testing.assert_close(found.double(), torch.from_numpy(expected), rtol=tolerance, atol=tolerance)


def test_black_padding_is_normalised_like_any_pixel() -> None:
    data = tiny.images(1)
    zero = torch.zeros(1, 2, dtype=torch.uint8)
    found = inputs(data, torch.tensor([0]), dtype=torch.float64, shift=zero, flip=torch.tensor([False]), pad=1)
    # The first row comes from the padding: -0.5 / 0.25, -0.4 / 0.2, -0.3 / 0.3.
    top = torch.tensor([-2.0, -2.0, -1.0], dtype=torch.float64)[:, None].expand(3, 8)
    torch.testing.assert_close(found[0, :, 0], top, rtol=1e-13, atol=0)


def test_augmented_inputs_are_the_normalised_crops() -> None:
    data = tiny.images(3)
    index, shift = torch.tensor([2, 0]), torch.tensor([[0, 2], [1, 0]], dtype=torch.uint8)
    flip = torch.tensor([True, False])
    found = inputs(data, index, dtype=torch.float64, shift=shift, flip=flip, pad=1)
    cropped = crop_and_flip(data.images[index], shift, flip, pad=1)
    plain = inputs(replace(data, images=cropped, labels=data.labels[:2]), torch.arange(2), dtype=torch.float64)
    assert torch.equal(found, plain)


def test_nothing_is_augmented_unasked() -> None:
    data = tiny.images(3)
    index = torch.tensor([2, 0])
    plain = inputs(data, index, dtype=torch.float64)
    off = torch.zeros(2, 2, dtype=torch.uint8), torch.zeros(2, dtype=torch.bool)
    assert torch.equal(inputs(data, index, dtype=torch.float64, shift=off[0], flip=off[1], pad=0), plain)
    mirrored = inputs(data, index, dtype=torch.float64, shift=off[0], flip=~off[1], pad=0)
    assert torch.equal(mirrored, plain.flip(3))


def test_features_pass_through() -> None:
    data = tiny.points(5)
    found = inputs(
        data,
        torch.tensor([3, 0]),
        dtype=torch.float64,
        shift=torch.ones(2, 2, dtype=torch.uint8),
        flip=torch.ones(2, dtype=torch.bool),
        pad=1,
    )
    assert torch.equal(found, data.images[[3, 0]].double())


def test_the_data_stay_as_they_were() -> None:
    for data in (tiny.images(4), tiny.points(4)):
        before = data.images.clone()
        out = inputs(data, torch.arange(4), dtype=torch.float32)
        out.zero_()
        assert torch.equal(data.images, before)


class TestAugmented:
    @pytest.mark.parametrize(
        "augment", [Augment(pad=2, flip=True), Augment(pad=0, flip=True), Augment(pad=0, flip=False)]
    )
    def test_images_pixel_by_pixel(self, augment: Augment) -> None:
        data = tiny.images(7, height=6, width=5)
        sources = [tiny.seeded(1), tiny.seeded(2)]
        parts = [torch.arange(7), torch.tensor([1, 4, 6])]
        plan = batch_plan(parts, sources, epochs=[2, 1], batch_size=3, augment=augment)
        seen, own = augmented(data, plan)
        assert len(seen) == plan.images == 17
        assert torch.equal(own.mask, plan.mask)
        assert torch.equal(own.noise, plan.noise)
        assert not own.shift.any()
        assert not own.flip.any()
        assert own.pad == 0
        assert own.index[own.mask].tolist() == list(range(17))
        for place in plan.mask.nonzero():
            member, step, slot = place.tolist()
            down, right = plan.shift[member, step, slot].tolist()
            image = data.images[plan.index[member, step, slot]].numpy()
            flip = bool(plan.flip[member, step, slot])
            expected = tiny.slow_crop_and_flip(image, down, right, flip, plan.pad)
            assert np.array_equal(seen.images[own.index[member, step, slot]].numpy(), expected)
            assert seen.labels[own.index[member, step, slot]] == data.labels[plan.index[member, step, slot]]

    @pytest.mark.parametrize("network", ["mlp", "resnet8"])
    def test_a_training_on_them_is_the_training(self, network: str) -> None:
        world = tiny.federation(network)
        augment = NO_AUGMENT if network == "mlp" else Augment(pad=1, flip=True)
        plan = batch_plan([torch.arange(10)], [tiny.seeded(3)], epochs=[2], batch_size=4, augment=augment)
        step, rates = Step(rule=Sgd(momentum=0.9)), torch.full((len(plan),), 0.01, dtype=torch.float64)
        seen, own = augmented(world.public, plan)
        expected = world.train(world.start(0), world.public, (world.public.labels,), plan, step, rates)
        found = world.train(world.start(0), seen, (seen.labels,), own, step, rates)
        assert tiny.same(found.stack, expected.stack)
        assert torch.equal(found.loss, expected.loss)
