"""The second stage, train: what each participant does with its own images in a round.

Shapes: S participants, N all clients, P parameters, T steps.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedrepro.core.rng import Streams
from fedrepro.core.setting import REQUIRED, SHARE, Option, Setting, above, among, at_least, declare
from fedrepro.core.state import Memory
from fedrepro.federation.federation import Federation
from fedrepro.kernels.batches import Augment, BatchPlan, epochs_in_line
from fedrepro.kernels.step import FREE, Proximal, Sgd, Step
from fedrepro.kernels.trained import Carried, Trained
from fedrepro.stages.local_batches import REPEATED, check_clients
from fedrepro.stages.local_batches import local_batches as local_batches
from fedrepro.stages.rates import Stepped, round_factor
from fedrepro.stages.round import Participants, Round

LENGTHS = ("effective", "plain")
declare(
    rounds=Option(
        "communication rounds; epochs of centralised training", neutral=REQUIRED, example=5, must=at_least(1)
    ),
    client_batch=Option("images in a client's step", neutral=REQUIRED, example=5, must=at_least(1)),
    client_lr=Option("clients' learning rate in the first round", neutral=REQUIRED, example=0.02, must=above(0)),
    client_lr_decay=Option("factor on it from step to step within a round", neutral=1.0, example=0.99),
    client_lr_decay_epochs=Option(
        "epochs of a client in a round after which `client_lr_decay_factor` comes in, each time; 0 for never",
        neutral=0,
        example=1,
        must=at_least(0),
    ),
    client_lr_decay_factor=Option(
        "factor on the learning rate after every `client_lr_decay_epochs`",
        neutral=0.1,
        example=0.5,
        where={"client_lr_decay_epochs": 1},
        must=SHARE,
    ),
    repeated_draws=Option(
        'whose batch orders, crops and flips are the same: "none"; "clients", of all clients of a round; '
        '"rounds", of all rounds as well',
        neutral="none",
        example="rounds",
        must=among("none", "clients", "rounds"),
    ),
    client_momentum=Option("of the clients' SGD", neutral=0.0, example=0.8),
    client_weight_decay=Option("of the clients' SGD, on weights only", neutral=0.0, example=0.01),
    lr_schedule=Option(
        "learning rate over rounds, a name of `ROUND_SCHEDULES`",
        neutral="constant",
        example="fedbe",
        formerly={"fedbe": "paper", "fedbe_official": "official"},
    ),
    augment_pad=Option("pixels of padding before a crop", neutral=0, example=2),
    augment_flip=Option("whether images are mirrored at random", neutral=False, example=True),
    proximal_mu=Option("strength of FedProx's term", neutral=0.0, example=0.1, where={"method": "fedprox"}),
    proximal_form=Option(
        "form of FedProx's term, see `step.Proximal`",
        neutral="squared",
        example="fedbe_official",
        where={"method": "fedbe_fedprox", "proximal_mu": 0.1},
        formerly={"fedbe_official": "official"},
    ),
    scaffold_length=Option(
        "length of a client's way, see `Scaffold`",
        neutral="effective",
        example="plain",
        where={"method": "scaffold"},
    ),
)


class DivergedError(ArithmeticError):
    """A loss became infinite or NaN; the message names the client, or distillation, and the round."""


@dataclass(frozen=True, kw_only=True)
class LocalSgd:
    """Momentum SGD on cross-entropy over the client's own images (FedBE eq. 1); a fresh optimiser each round.

    Args:
        lr: learning rate before the round's factor; FedBE 0.01.
        lr_schedule: factor over rounds, a name of `rates.ROUND_SCHEDULES`; within a round it is constant.
        rounds: rounds of the whole run, which the schedule is relative to.
        batch_size: FedBE 40.
        momentum: in [0, 1); FedBE 0.9.
        weight_decay: on weights only, >= 0.
        augment: crops and flips.
        last_batch: see `batches.batch_plan`.
        lr_decay: factor on the learning rate from step to step within a round, in (0, 1]; FedBE's Figure 5 tries
            0.99, all else has 1.
        decay_epochs: passes over its own images after which a client's learning rate is multiplied by
            `decay_factor`, again and again; 0 for never. FedBE's released code: 30, for 1-Ensemble only.
        decay_factor: in (0, 1]; 0.1 in the code.
        repeated: a name of `REPEATED`; which clients' and rounds' draws begin from one state of the generator.
        proximal: FedProx's pull towards the model sent out.
        diverged: what a client's loss that is not finite means: "fail" ends the run, "keep" leaves it to later
            stages, which find it in `round.finite`.
    """

    needs_clients: ClassVar[bool] = False

    lr: float
    lr_schedule: str
    rounds: int
    batch_size: int
    momentum: float
    weight_decay: float
    augment: Augment
    last_batch: str = "merge"
    lr_decay: float = 1.0
    decay_epochs: int = 0
    decay_factor: float = 0.1
    repeated: str = "none"
    proximal: Proximal = FREE
    diverged: str = "fail"

    def __post_init__(self) -> None:
        """Check the range and the option."""
        if not 0 < self.lr_decay <= 1:
            raise ValueError(f"lr_decay must be in (0, 1], got {self.lr_decay}")
        if self.decay_epochs < 0 or not 0 < self.decay_factor <= 1:
            raise ValueError(
                "decay_epochs must be >= 0 and decay_factor in (0, 1], got"
                f" {self.decay_epochs} and {self.decay_factor}"
            )
        if self.repeated not in REPEATED:
            raise ValueError(f"repeated must be one of {REPEATED}, got {self.repeated!r}")
        if self.diverged not in ("fail", "keep"):
            raise ValueError(f'diverged must be "fail" or "keep", got {self.diverged!r}')

    def check(self, federation: Federation) -> None:
        """Refuse clients that cannot train and a schedule that does not exist; see `round.check`."""
        check_clients(federation, federation.numbers, batch_size=self.batch_size, last_batch=self.last_batch)
        round_factor(self.lr_schedule, round=0, rounds=self.rounds)
        _ = self.step  # which checks its own ranges

    @property
    def step(self) -> Step:
        """What every step does."""
        return Step(rule=Sgd(momentum=self.momentum, weight_decay=self.weight_decay, proximal=self.proximal))

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> tuple[Trained, Memory]:
        """Train all participants from `round.start` [S]; nothing is remembered.

        Raises:
            DivergedError: naming the client whose loss is not finite, and the round.
        """
        return self.run(round, federation, streams, self.batches(round.who, federation, streams)), {}

    def batches(self, who: Participants, federation: Federation, streams: Streams) -> BatchPlan:
        """Plan all participants' batches; see `local_batches`."""
        plan = local_batches(
            federation,
            who,
            streams,
            batch_size=self.batch_size,
            augment=self.augment,
            last_batch=self.last_batch,
            repeated=self.repeated,
        )
        return epochs_in_line(plan, who.epochs) if self.decay_epochs else plan

    def rates(self, steps: int, streams: Streams, epochs: int = 1) -> Tensor:
        """Return the learning rate of each step of this round, [T] float64; `epochs` of equal length fill it."""
        factor = round_factor(self.lr_schedule, round=streams.round, rounds=self.rounds)
        every = self.decay_epochs * steps // epochs
        return Stepped(lr=self.lr * factor, decay=self.lr_decay, every=every, factor=self.decay_factor).steps(
            steps
        )

    def run(
        self,
        round: Round,
        federation: Federation,
        streams: Streams,
        plan: BatchPlan,
        carried: Carried | None = None,
        correction: Tensor | None = None,
    ) -> Trained:
        """Run a batch plan, optionally with a rule that lives on and a correction [S, P]."""
        rates = self.rates(len(plan), streams, max(round.who.epochs))
        trained = federation.train(
            round.start,
            federation.data,
            (federation.data.labels,),
            plan,
            self.step,
            rates,
            carried=carried,
            correction=correction,
        )
        if self.diverged == "fail" and not bool(trained.finite.all()):
            client = round.who.clients[trained.finite.tolist().index(False)]
            raise DivergedError(
                f"the loss of client {client} in round {streams.round} is not finite (learning rate {rates[0]:g})"
            )
        return trained


@dataclass(frozen=True, kw_only=True)
class Scaffold(LocalSgd):
    """SCAFFOLD: every local gradient is corrected by control variates (Karimireddy et al. 2020, Algorithm 1).

    Server and clients hold c and c_i, zero at first. A client's step uses g - c_i + c; after K steps from x to y_i
    (option II) c_i+ = c_i - c + (x - y_i) / L, and c+ = c + (1/N) sum_i (c_i+ - c_i) over the participants, with N
    the number of all clients. Only trainable parameters have control variates. Models are averaged by size as
    everywhere here, which is SCAFFOLD's own mean (with a global step of 1) where clients are of equal size.

    L is the length of the way per unit of gradient. "plain": K eta, as in the paper, whose clients have no
    momentum. "effective": with momentum m a gradient goes on to count, and the way of a constant gradient is
    sum_t eta_t (1 - m^t) / (1 - m), nearly K eta / (1 - m); with K eta the c_i would come out 1 / (1 - m) times
    too long. Without momentum both are the same.

    Args:
        length: a name of `LENGTHS`; for the others see `LocalSgd`.
    """

    needs_clients: ClassVar[bool] = True

    length: str = "effective"

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.length not in LENGTHS:
            raise ValueError(f"length must be one of {LENGTHS}, got {self.length!r}")

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> tuple[Trained, Memory]:
        """Train all participants from `round.start` [S]; remembers "control" c [P] and "controls" c_i [N, P].

        Raises:
            DivergedError: as `LocalSgd`.
        """
        start, who = round.start, round.who
        plan = self.batches(who, federation, streams)
        nothing = start.params.new_zeros(federation.clients, start.params.shape[1])
        controls = round.state.memory.get("controls", nothing)
        control = round.state.memory.get("control", nothing[0])
        assert isinstance(controls, Tensor)
        assert isinstance(control, Tensor)
        own = controls[list(who.clients)]
        trained = self.run(round, federation, streams, plan, correction=control - own)
        moved = start.params - trained.stack.params
        change = moved / self.lengths(plan, streams, max(who.epochs)).to(moved)[:, None] - control  # c_i+ - c_i
        fresh = controls.clone()
        fresh[list(who.clients)] = own + change
        return trained, {"controls": fresh, "control": control + change.sum(0) / federation.clients}

    def lengths(self, plan: BatchPlan, streams: Streams, epochs: int = 1) -> Tensor:
        """Return L of each participant, [S] float64; see `rates` for `epochs`."""
        taken = plan.mask.any(2)  # [S, T]
        momentum = self.momentum if self.length == "effective" else 0.0
        nth = taken.cumsum(1).double()  # a step's number among those that the participant takes
        rates = self.rates(len(plan), streams, epochs)
        return (taken * rates * (1 - momentum**nth) / (1 - momentum)).sum(1)


def augment(setting: Setting) -> Augment:
    """Return the augmentation of a setting's clients."""
    return Augment(pad=setting.augment_pad, flip=setting.augment_flip)


def _local(setting: Setting) -> dict[str, Any]:
    return {
        "lr": setting.client_lr,
        "lr_schedule": setting.lr_schedule,
        "rounds": setting.rounds,
        "batch_size": setting.client_batch,
        "momentum": setting.client_momentum,
        "weight_decay": setting.client_weight_decay,
        "augment": augment(setting),
        "lr_decay": setting.client_lr_decay,
        "decay_epochs": setting.client_lr_decay_epochs,
        "decay_factor": setting.client_lr_decay_factor,
        "repeated": setting.repeated_draws,
    }


def local_sgd(setting: Setting) -> LocalSgd:
    """Return the clients' training of a setting: plain SGD."""
    return LocalSgd(**_local(setting))


def local_proximal(setting: Setting) -> LocalSgd:
    """Return the clients' training of a setting with FedProx's term."""
    return LocalSgd(**_local(setting), proximal=Proximal(mu=setting.proximal_mu, form=setting.proximal_form))


def local_scaffold(setting: Setting) -> Scaffold:
    """Return the clients' training of a setting with SCAFFOLD's control variates."""
    return Scaffold(**_local(setting), length=setting.scaffold_length)
