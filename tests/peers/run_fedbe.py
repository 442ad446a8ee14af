"""FedBE's released local update, unmodified, out of a clone (--path), on our networks and PIL images.

Its own networks cannot all be built as released. It draws its own batches, so weights are not compared. Its
weight decay runs with the factor 0, which costs the same.
"""

import copy
import sys
from pathlib import Path
from types import SimpleNamespace

from peer_common import LR, Skipped, Work, cpu_only, float32_only, main
from pil import Pictures
from torch_loops import copied, mean


def prepare(work: Work):
    cpu_only(work)
    float32_only(work)
    path = Path(work.options.path or "")
    if not work.options.path or not (path / "models" / "Update.py").is_file():
        raise Skipped("needs --path to a clone of FedBE's released code (models/Update.py)")
    sys.path.insert(0, str(path))
    from models.Update import SWAGLocalUpdate

    args = SimpleNamespace(local_bs=work.batch, ens=False, reg_type="", weight_decay=0.0, verbose=False)
    pictures, module = Pictures(work), work.module()
    clients = [SWAGLocalUpdate(args, "cpu", dataset=pictures, idxs=part.tolist()) for part in work.parts]
    held = [copied(module)]

    def round(number: int) -> None:
        ends = []
        for client in clients:
            module.load_state_dict(held[0])
            ends.append(copied(client.train(copy.deepcopy(module), 1, LR)))
        held[0] = mean(ends)

    return round, None, {}


if __name__ == "__main__":
    main("fedbe", prepare)
