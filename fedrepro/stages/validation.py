"""How well models do on the server's labelled validation images.

Shapes: M models, N images, C classes.
"""

from torch import Tensor

from fedrepro.core.stack import Stack
from fedrepro.federation.federation import Federation


def validated(models: Stack, federation: Federation) -> Tensor:
    """Return each model's accuracy in percent on the validation images, [M] float64 on the CPU.

    A prediction that is not finite is wrong, so a model that has diverged has no accuracy, and no error ends the
    round.

    Raises:
        ValueError: if the server has no validation images.
    """
    check_labelled(federation)
    logits = federation.predict(models, federation.validation)  # [M, N, C]
    right = (logits.argmax(-1) == federation.validation.labels) & logits.isfinite().all(-1)
    return 100.0 * right.double().mean(1).cpu()


def check_labelled(federation: Federation) -> None:
    """Raise a ValueError where the server has no validation images; for the `check` of stages."""
    if not len(federation.validation):
        raise ValueError(
            "choosing by accuracy needs validation images, the server has none: set validation_images"
        )


def chance(federation: Federation) -> float:
    """Return the accuracy in percent of guessing one of C classes."""
    return 100.0 / federation.data.class_count
