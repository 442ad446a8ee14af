"""What is measured of a model or an ensemble.

Shapes: M members, N images, C classes, K bins.
"""

import base64
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """Return the accuracy in percent of scores [N, C] (logits or probabilities) against labels [N].

    Raises:
        ValueError: if there are no images, or the numbers differ.
        ArithmeticError: if a score is not finite; the share of class 0 would pass for an accuracy.
    """
    return 100.0 * float(right(scores, labels).double().mean())


def right(scores: Tensor, labels: Tensor) -> Tensor:
    """Return [N] bool: whether the largest of the scores [N, C] is the label's; raises as `accuracy` does."""
    if len(scores) != len(labels) or not len(labels):
        raise ValueError(f"accuracy needs as many scores as labels, got {len(scores)} and {len(labels)}")
    if not bool(scores.isfinite().all()):
        raise ArithmeticError("a prediction is not finite: the model has diverged")
    return scores.argmax(-1) == labels


def packed(hits: Tensor) -> str:
    """Return hits [N] bool as text: base64 of eight images a byte, the first image in a byte's highest bit."""
    return base64.b64encode(np.packbits(hits.cpu().numpy()).tobytes()).decode("ascii")


def unpacked(text: str, images: int) -> np.ndarray:
    """Return what `packed` made a text of: [images] bool.

    Raises:
        ValueError: if the text does not hold that many images.
    """
    bits = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8)
    if len(bits) != -(-images // 8):
        raise ValueError(f"hits of {images} images need {-(-images // 8)} bytes, got {len(bits)}")
    return np.unpackbits(bits, count=images).astype(bool)


@dataclass(frozen=True)
class Confidence:
    """Histograms over confidence, the largest predicted probability: how many were right, how many wrong.

    edges [K + 1] in [1/C, 1]; correct [K] and incorrect [K]: images per bin, averaged over members.
    """

    edges: Tensor
    correct: Tensor
    incorrect: Tensor


def confidence_histogram(logits: Tensor, labels: Tensor, *, bins: int) -> Confidence:
    """Count right and wrong predictions by confidence, averaged over members (FedBE Figure 8).

    Args:
        logits: [M, N, C].
        labels: [N] int64.
        bins: K >= 1, of equal width between 1/C and 1.
    """
    if bins < 1:
        raise ValueError(f"bins must be >= 1, got {bins}")
    confidence, guess = logits.double().softmax(-1).max(-1)  # [M, N]
    right = guess == labels
    edges = torch.linspace(1 / logits.shape[-1], 1, bins + 1, dtype=torch.float64)
    place = torch.bucketize(confidence, edges[1:-1].to(confidence.device))
    members = len(logits)

    def count(chosen: Tensor) -> Tensor:
        return torch.bincount(place[chosen].cpu(), minlength=bins).double() / members

    return Confidence(edges, count(right), count(~right))
