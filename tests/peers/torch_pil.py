"""The usual loop: PIL images through a DataLoader, eager; crops are its own, so weights are not compared."""

import torchvision
from peer_common import Work, main
from pil import Pictures, loader, moved
from torch_loops import rounds


def prepare(work: Work):
    pictures = Pictures(work)
    round, _ = rounds(work, lambda _, client: moved(loader(pictures, work, client), work.device))
    return round, None, {"torchvision": torchvision.__version__}


if __name__ == "__main__":
    main("torch_pil", prepare)
