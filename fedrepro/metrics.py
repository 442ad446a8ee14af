"""What is measured of a model or an ensemble.

Shapes: M members, N images, C classes, K bins.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedrepro.federation import Federation
from fedrepro.method import Method, Trace
from fedrepro.state import State


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """Return the accuracy in percent of scores [N, C] (logits or probabilities) against labels [N].

    Raises:
        ValueError: if there are no images, or the numbers differ.
        ArithmeticError: if a score is not finite; the share of class 0 would pass for an accuracy.
    """
    if len(scores) != len(labels) or not len(labels):
        raise ValueError(f"accuracy needs as many scores as labels, got {len(scores)} and {len(labels)}")
    if not bool(scores.isfinite().all()):
        raise ArithmeticError("a prediction is not finite: the model has diverged")
    return 100.0 * float((scores.argmax(-1) == labels).double().mean())


def evaluate(
    method: Method, state: State, trace: Trace, federation: Federation, *, last: bool
) -> dict[str, float]:
    """Measure one round; accuracies in percent.

    Args:
        method: the method played.
        state, trace: what the round returned.
        federation: with the test images.
        last: whether this is the final round; only then is the teachers' ensemble run on the test images.

    Returns:
        accuracy: of the global model on the test images; average_accuracy: of the aggregated model before
        distillation; teacher_accuracy: of the pseudo-labels on the public images, NaN if there are none or these
        images are of other classes;
        ensemble_accuracy: of the teachers together on the test images, NaN unless `last`; train_loss;
        distill_loss; ensemble_size.
    """
    nan = float("nan")
    labels = federation.test.labels
    student = accuracy(federation.predict(state.models.take(slice(0, 1)), federation.test)[0], labels)
    distilled = len(trace.targets) > 0
    average = accuracy(federation.predict(trace.average, federation.test)[0], labels) if distilled else student
    known = distilled and federation.public.classes == federation.data.classes
    together = last and len(trace.teacher.members) > 0
    return {
        "accuracy": student,
        "average_accuracy": average,
        "teacher_accuracy": accuracy(trace.targets, federation.public.labels) if known else nan,
        "ensemble_accuracy": accuracy(trace.teacher(federation.test), labels) if together else nan,
        "ensemble_size": float(len(trace.teacher.members)),
        "train_loss": trace.train_loss,
        "distill_loss": trace.distill_loss,
    }


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
