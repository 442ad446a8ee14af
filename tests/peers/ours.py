"""This library: the stacked kernel, which takes the fastest engine for the device."""

from peer_common import STEP, Work, main

import fedrepro
from fedrepro.kernels import stacked


def prepare(work: Work):
    round, model = work.federated("stacked", work.options.precision)
    engine = stacked.choose(work.architecture, work.data.images.device, work.options.precision, STEP).engine
    return round, lambda: model().params[0], {"fedrepro": fedrepro.__version__, "engine": engine}


if __name__ == "__main__":
    main("ours", prepare)
