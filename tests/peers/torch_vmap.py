"""All clients in one program: vmap(grad(functional_call)) over their stacked weights, channels-last images."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from peer_common import LR, MOMENTUM, Skipped, Work, main
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch_loops import copied, in_memory

State = dict[str, Tensor]


def prepare(work: Work):
    module = work.module()
    held, round = [copied(module)], rounds(work, module)

    def play(number: int) -> None:
        held[0] = round(number, held[0])

    names = [name for name, _ in module.named_parameters()]
    return play, lambda: torch.cat([held[0][name].reshape(-1) for name in names]), {}


def rounds(work: Work, module: nn.Module) -> Callable[[int, State], State]:
    """Return a round: from its number and the global model to the next global model, statistics included."""
    if work.images % work.batch:
        raise Skipped("vmap takes batches of one size: images must be a multiple of the batch")
    batches = in_memory(work, channels_last=True)
    names = [name for name, _ in module.named_parameters()]

    def loss(weights: State, rest: State, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(work.device, torch.bfloat16, enabled=work.amp):
            logits = functional_call(module, weights | rest, (x,))
        return F.cross_entropy(logits.float(), y)

    gradients = vmap(grad(loss))  # BatchNorm updates the statistics in `rest` in place

    def round(number: int, state: State) -> State:
        stacks = {n: value.expand(work.clients, *value.shape).clone() for n, value in state.items()}
        weights = {name: stacks[name] for name in names}
        rest = {name: value for name, value in stacks.items() if name not in weights}
        velocity = {name: torch.zeros_like(value) for name, value in weights.items()}
        for step in zip(*(batches(number, client) for client in range(work.clients))):
            x, y = (torch.stack(parts) for parts in zip(*step))
            for name, gradient in gradients(weights, rest, x, y).items():
                velocity[name].mul_(MOMENTUM).add_(gradient)
                weights[name].sub_(velocity[name], alpha=LR)
        return {n: v.mean(0) if v.is_floating_point() else v.amax(0) for n, v in stacks.items()}

    return round


if __name__ == "__main__":
    main("torch_vmap", prepare)
