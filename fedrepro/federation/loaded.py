"""Data sets on a device, read once per process."""

from functools import lru_cache

import torch

from fedrepro.core.setting import Setting
from fedrepro.data.data import Data, data_root, load, spec_of
from fedrepro.data.datasets import DATASETS


@lru_cache(maxsize=8)
def _loaded(name: str, split: str, root: str, device: str) -> Data:
    return load(name, "train" if split == "train" else "test").to(torch.device(device))


def datasets(name: str, device: str) -> tuple[Data, Data]:
    """Return train and test data on a device, read once per process."""
    root = "" if spec_of(name).shipped else str(data_root())
    return _loaded(name, "train", root, device), _loaded(name, "test", root, device)


def fingerprint(setting: Setting) -> str:
    """Return a hash of the data that a setting reads; what code makes is not read."""
    if setting.data == "swiss_roll":
        return "generated"
    train, test = datasets(setting.data, "cpu")
    found = f"{train.fingerprint[:16]}-{test.fingerprint[:16]}"
    if setting.public_data in DATASETS:
        found += f"-{datasets(setting.public_data, 'cpu')[0].fingerprint[:16]}"
    return found
