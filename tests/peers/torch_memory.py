"""In-memory tensors, default layout, eager."""

from peer_common import Work, main
from torch_loops import in_memory, rounds


def prepare(work: Work):
    return (*rounds(work, in_memory(work, channels_last=False)), {})


if __name__ == "__main__":
    main("torch_memory", prepare)
