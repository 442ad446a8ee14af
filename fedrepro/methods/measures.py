"""What is measured of a round.

Shapes: N images, C classes.
"""

from collections.abc import Mapping

from torch import Tensor

from fedrepro.core.metrics import accuracy, right
from fedrepro.core.stack import Stack
from fedrepro.core.state import State
from fedrepro.federation.federation import Federation
from fedrepro.methods.compose import Method
from fedrepro.stages.combine import Combine, MeanOfLogits, MeanOfProbabilities, vote, vote_in_order
from fedrepro.stages.round import Round

# Other ways to combine an ensemble's members than the method's own.
OTHERWISE: Mapping[str, Combine] = {
    "mean at temperature 2": MeanOfProbabilities(sharpen=1.0, temperature=2.0),
    "mean of logits": MeanOfLogits(),
    "vote": vote,
    "vote, ties in order": vote_in_order,
}


def evaluate(
    method: Method, state: State, round: Round, federation: Federation, *, last: bool
) -> dict[str, float]:
    """Measure one round of the first architecture, mostly the only one; accuracies in percent.

    Args:
        method: the method played.
        state, round: what it returned.
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
    labels, world = federation.test.labels, federation.worlds[0]
    student = _accuracy(world, state.models)
    distilled = len(round.targets) > 0
    average = _accuracy(world, round.average) if distilled else student
    known = distilled and federation.public.classes == federation.data.classes
    together = last and len(round.teacher) > 0
    return {
        "accuracy": student,
        "average_accuracy": average,
        "teacher_accuracy": accuracy(round.targets, federation.public.labels) if known else nan,
        "ensemble_accuracy": accuracy(round.teacher(federation.test), labels) if together else nan,
        "ensemble_size": float(len(round.teacher)),
        "train_loss": round.train_loss,
        "distill_loss": round.distill_loss,
    }


def hits(method: Method, state: State, round: Round, federation: Federation) -> Tensor:
    """Return [N] bool: which test images the run's answer, student or ensemble, gets right.

    The hits of several seeds tell how much of an accuracy is chance of this test set (`papers.noise`).
    """
    world = federation.worlds[0]
    if method.answer == "ensemble":
        return right(round.teacher(federation.test), federation.test.labels)
    return right(world.predict(state.models.take(slice(0, 1)), world.test)[0], federation.test.labels)


def measured(method: Method, state: State, round: Round, federation: Federation) -> dict[str, float]:
    """Return the further numbers of a round: what stages measured, the method's measures, the other architectures.

    The accuracies of further global models and architectures are named "accuracy of model 1" and
    "accuracy of resnet32"; what a stage measured in another architecture ends in its name likewise.
    """
    found = dict(round.measured)
    names = [world.architecture.name for world in federation.worlds]
    for number, (own, account, world) in enumerate(zip(state.worlds, round.worlds, federation.worlds)):
        # Where architectures of one name differ in their options, or in their clients, they are counted from 1.
        name = names[number] if names[1:].count(names[number]) < 2 else f"{names[number]} {number + 1}"
        if number:
            found |= {f"{what} of {name}": value for what, value in account.measured.items()}
            found[f"accuracy of {name}"] = _accuracy(world, own.models)
        for model in range(1, len(own.models)):
            whose = f"model {model}" + (f" of {name}" if number else "")
            found[f"accuracy of {whose}"] = _accuracy(world, own.models, model)
    for measure in method.measures:
        found |= measure(state, round, federation)
    return found


def combined_otherwise(state: State, round: Round, federation: Federation) -> dict[str, float]:
    """Return the accuracy of a round's ensemble on the test images for each of `OTHERWISE`: a `Measure`.

    So the same models show what a rule that a paper leaves open is worth; with them the mean accuracy of the
    members, each by itself.
    """
    logits, labels = round.teacher.logits(federation.test), federation.test.labels
    alone = [accuracy(member, labels) for member in logits]
    return {
        **{f"accuracy by {name}": accuracy(combine(logits), labels) for name, combine in OTHERWISE.items()},
        "accuracy of a member alone": sum(alone) / len(alone),
    }


def _accuracy(world: Federation, models: Stack, number: int = 0) -> float:
    """Return the accuracy in percent of one model of a stack on the test images."""
    one = models.take(slice(number, number + 1))
    return accuracy(world.predict(one, world.test)[0], world.test.labels)
