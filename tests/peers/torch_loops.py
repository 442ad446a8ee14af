"""The plain torch loop over clients that the torch runners vary: layout, precision, compiling."""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from peer_common import LR, MOMENTUM, PAD, Round, Work
from torch import Tensor, nn

from fedrepro.kernels.inputs import inputs

State = dict[str, Tensor]
Batches = Callable[[int, int], Iterable[tuple[Tensor, Tensor]]]  # of a round and a client


def mean(states: list[State]) -> State:
    """Return the mean of the clients' states; counters keep their integers."""
    joined = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    return {n: v.mean(0) if v.is_floating_point() else v.amax(0) for n, v in joined.items()}


def copied(module: nn.Module) -> State:
    """Return a copy of a module's state."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def steps(
    module: nn.Module, run: Callable[[Tensor], Tensor], batches: Iterable, *, device: str, amp: bool
) -> None:
    """Train one client on its batches with a fresh optimizer."""
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM)
    for x, y in batches:
        with torch.autocast(device, torch.bfloat16, enabled=amp):
            logits = run(x)
        loss = F.cross_entropy(logits.float(), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


def in_memory(work: Work, *, channels_last: bool) -> Batches:
    """Return batches cut out of the images in memory, after the shared plan."""
    plans: dict[int, object] = {}

    def batches(number: int, client: int) -> Iterable[tuple[Tensor, Tensor]]:
        if number not in plans:
            plans.clear()
            plans[number] = work.plan(number).to(torch.device(work.device))
        plan: object = plans[number]
        counts = plan.mask[client].sum(1).tolist()  # type: ignore[attr-defined]
        for step, count in enumerate(counts):
            at = (client, step, slice(count))
            index, shift, flip = plan.index[at], plan.shift[at], plan.flip[at]  # type: ignore[attr-defined]
            x = inputs(work.data, index, dtype=torch.float32, shift=shift, flip=flip, pad=PAD)
            yield (x if channels_last else x.contiguous()), work.data.labels[index]

    return batches


def rounds(
    work: Work, batches: Batches, *, channels_last: bool = False, compiled: bool = False
) -> tuple[Round, Callable[[], Tensor]]:
    """Return a round that trains the clients one after the other, and what gives the global parameters."""
    module = work.module()
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
    run = torch.compile(module) if compiled else module
    held = [copied(module)]

    def round(number: int) -> None:
        ends = []
        for client in range(work.clients):
            module.load_state_dict(held[0])
            steps(module, run, batches(number, client), device=work.device, amp=work.amp)
            ends.append(copied(module))
        held[0] = mean(ends)

    names = [name for name, _ in module.named_parameters()]
    return round, lambda: torch.cat([held[0][name].reshape(-1) for name in names])
