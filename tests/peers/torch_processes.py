"""Worker processes of one thread each, as many as --threads, that share the clients out; channels-last."""

import atexit

import torch
from peer_common import Work, cpu_only, main
from torch import multiprocessing
from torch_loops import copied, in_memory, mean, steps


def worker(options, place: int, count: int, pipe) -> None:
    torch.set_num_threads(1)
    work = Work(options)
    module = work.module().to(memory_format=torch.channels_last)
    batches = in_memory(work, channels_last=True)
    while True:
        number, state = pipe.recv()
        if state is None:
            return
        ends = []
        for client in range(place, work.clients, count):
            module.load_state_dict(state)
            steps(module, module, batches(number, client), device="cpu", amp=work.amp)
            ends.append(copied(module))
        pipe.send(ends)


def prepare(work: Work):
    cpu_only(work)
    context = multiprocessing.get_context("spawn")
    count = min(work.options.threads, work.clients)
    pipes = []
    for place in range(count):
        ours, theirs = context.Pipe()
        context.Process(target=worker, args=(work.options, place, count, theirs), daemon=True).start()
        pipes.append(ours)
        atexit.register(ours.send, (0, None))
    module = work.module()
    held = [copied(module)]
    names = [name for name, _ in module.named_parameters()]

    def round(number: int) -> None:
        for pipe in pipes:
            pipe.send((number, held[0]))
        held[0] = mean([state for pipe in pipes for state in pipe.recv()])

    return round, lambda: torch.cat([held[0][name].reshape(-1) for name in names]), {}


if __name__ == "__main__":
    main("torch_processes", prepare)
