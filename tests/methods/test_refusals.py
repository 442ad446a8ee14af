"""What cannot work is refused when a federation is assembled or a method begins, before anything is trained."""

from dataclasses import replace
from typing import Any

import pytest
import tiny

from fedrepro.federation.assemble import assemble
from fedrepro.methods import catalogue as methods

# Changes to a small setting, and what the refusal says.
REFUSED: list[tuple[dict[str, Any], str]] = [
    # SWA that collects nothing
    (
        {"swa_start": 10_000},
        "SWA collects no model: no end of a 2-step cycle after step 10000; distil",
    ),
    ({"distill_epochs": 1, "public_images": 4, "swa_start": 1}, "SWA collects no model"),
    ({"method": "fedbe_ground_truth", "swa_start": 500}, "SWA collects no model"),
    # no public images, or a single one with BatchNorm
    ({"public_images": 0}, "distillation needs public images, the server has none"),
    ({"method": "v_distillation", "public_images": 0}, "distillation needs public images"),
    ({"method": "fedbe_without_swa", "public_images": 0}, "distillation needs public images"),
    ({"public_images": 1}, r"distillation \(1 images, batches of 4\) would train on a batch of one image"),
    ({"distill_batch": 1}, r"distillation \(20 images, batches of 1\) would train on a batch of one image"),
    (
        {"method": "fedavg_ensemble", "posterior_buffers": "recalibrate", "public_images": 0},
        "recalibrating BatchNorm needs public images, the server has none",
    ),
    (
        {"method": "fedavg_ensemble", "posterior_buffers": "recalibrate", "public_images": 1},
        "recalibrating BatchNorm needs two public images or more, the server has one",
    ),
    (
        {
            "method": "fedavg_ensemble",
            "posterior": "dirichlet",
            "posterior_buffers": "recalibrate",
            "public_images": 1,
        },
        "recalibrating BatchNorm needs two public images or more",
    ),
    # labels that are of other classes
    ({"method": "fedbe_ground_truth", "public_data": "photos"}, "true labels as targets need public images of"),
    # rates, schedules, precisions, epochs
    ({"distill_epochs": 0}, "the epochs of distillation must be >= 1, got 0"),
    ({"distill_lr": -1.0}, "learning rates must be >= 0 and finite"),
    ({"distill_lr": float("inf")}, "distill_lr must be a number that float32 holds, got inf"),
    ({"swa_lr_low": -1.0}, "learning rates must be >= 0"),
    ({"lr_schedule": "linear"}, "lr_schedule must be one of"),
    ({"precision": "float16"}, "precision must be one of"),
    # clients that cannot train
    ({"client_batch": 1}, r"client 0 \(\d+ images, batches of 1\) would train on a batch of one.*batches of two"),
    ({"method": "centralized"}, "centralised training has one client"),
    # partitions and shares of the data
    ({"public_images": 5000}, "size must be in"),
    ({"clients": 61, "partition": "iid"}, r"clients must be in \[1, 60\]"),
    ({"partition": "dirichlet_fedbe_official", "clients": 4}, "class 0 needs 8 images"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_before_anything_is_trained(changes: dict[str, Any], message: str) -> None:
    def begin() -> None:
        setting = tiny.setting(**changes)
        methods.build(setting).init(assemble(setting, 0), 0)

    with pytest.raises(ValueError, match=message):
        begin()


@pytest.mark.parametrize("method", methods.METHODS)
class TestEveryMethod:
    """Where the method of a table begins, its clients and its server can do their part."""

    def test_a_client_of_one_image(self, method: str) -> None:
        here = tiny.federation("resnet8", sizes=(1,) if method == "centralized" else (5, 1, 4))
        with pytest.raises(ValueError, match=r"client \d \(1 images, .*: give every client two images or more"):
            methods.build(tiny.setting(method=method)).init(here, 0)
        methods.build(tiny.setting(method=method)).init(replace(here, architecture=tiny.network("group")), 0)

    def test_a_client_without_images(self, method: str) -> None:
        here = tiny.federation("resnet8", sizes=(0,) if method == "centralized" else (5, 0, 4))
        with pytest.raises(ValueError, match=r"client \d has no images to train on"):
            methods.build(tiny.setting(method=method)).init(here, 0)
