"""Data sets that scikit-learn ships: small, there on every machine, and read in a moment.

Each function returns images uint8 [N, 32, 32, 3] and labels int64 [N] of all that there is, in a fixed order;
`fedrepro.data` divides them into train and test.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch.nn.functional import interpolate


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's 8x8 digits enlarged to 32x32.

    Pixels times 255/16 and bilinear weights in eighths are exact in float32, so every machine gets the same
    bytes.
    """
    from sklearn.datasets import load_digits

    shipped = load_digits()
    pixels = torch.from_numpy(shipped.images).float()[:, None] * (255 / 16)
    enlarged = interpolate(pixels, size=(32, 32), mode="bilinear", align_corners=False)
    images = enlarged.round().to(torch.uint8).permute(0, 2, 3, 1).repeat(1, 1, 1, 3).numpy()
    return images, shipped.target.astype(np.int64)


def photos() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's two photographs, a temple in China and a flower, cut into 32x32 tiles.

    The tiles are the 64x64 squares, as many as fit from the top left, at half their size: each pixel is the
    mean of 2x2, a half rounded upwards. The photographs are JPEG files, so that another build of Pillow may
    give other bytes, by one here and there, and then also another canonical order: no checksums.
    """
    from sklearn.datasets import load_sample_image

    tiles = [_tiles(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
    return np.concatenate(tiles), np.repeat(np.arange(len(tiles)), [len(part) for part in tiles])


def _tiles(photo: np.ndarray) -> np.ndarray:
    """Cut a photograph, uint8 [H, W, 3], into tiles [N, 32, 32, 3], row by row."""
    down, across = photo.shape[0] // 64, photo.shape[1] // 64
    blocks = photo[: 64 * down, : 64 * across].reshape(down, 32, 2, across, 32, 2, 3)
    halved = (blocks.sum(axis=(2, 5), dtype=np.uint16) + 2) // 4
    return halved.transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3).astype(np.uint8)


SHIPPED: Mapping[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {"digits": digits, "photos": photos}
