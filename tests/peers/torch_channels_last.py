"""In-memory tensors, channels-last, eager (with --precision bfloat16 under autocast)."""

from peer_common import Work, main
from torch_loops import in_memory, rounds


def prepare(work: Work):
    return (*rounds(work, in_memory(work, channels_last=True), channels_last=True), {})


if __name__ == "__main__":
    main("torch_channels_last", prepare)
