"""What is measured of a round."""

from fedrepro.core.metrics import accuracy
from fedrepro.core.state import State
from fedrepro.federation.federation import Federation
from fedrepro.methods.compose import Method
from fedrepro.stages.round import Trace


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
