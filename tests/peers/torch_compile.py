"""In-memory tensors, channels-last, torch.compile."""

from peer_common import Work, main
from torch_loops import in_memory, rounds


def prepare(work: Work):
    return (*rounds(work, in_memory(work, channels_last=True), channels_last=True, compiled=True), {})


if __name__ == "__main__":
    main("torch_compile", prepare)
