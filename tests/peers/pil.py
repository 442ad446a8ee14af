"""Images as a torchvision data set gives them: PIL images that are augmented one by one."""

from collections.abc import Iterable

import numpy as np
import torch
from peer_common import MEAN, PAD, STD, Work
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset


class Pictures(Dataset):
    """All clients' images; crop, flip and normalisation by torchvision."""

    def __init__(self, work: Work) -> None:
        from PIL import Image
        from torchvision import transforms as T

        self.pictures = [Image.fromarray(image) for image in work.data.images.cpu().numpy()]
        self.labels = work.data.labels.tolist()
        self.targets = np.array(self.labels)
        self.transform = T.Compose(
            [T.RandomCrop(32, padding=PAD), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        return self.transform(self.pictures[place]), self.labels[place]


def loader(pictures: Pictures, work: Work, client: int) -> Iterable:
    """Return a client's shuffled batches, read in this process."""
    return DataLoader(Subset(pictures, work.parts[client].tolist()), batch_size=work.batch, shuffle=True)


def moved(batches: Iterable, device: str) -> Iterable[tuple[Tensor, Tensor]]:
    """Yield batches on the device."""
    for x, y in batches:
        yield x.to(torch.device(device)), y.to(torch.device(device))
