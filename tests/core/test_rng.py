import ast
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

import fedrepro
from fedrepro.core.rng import Streams, derive, generator, numpy_generator


def test_derive_is_half_the_first_eight_bytes_of_a_sha256() -> None:
    # printf '7/batches/3/2' | sha256sum begins with 925b8a47fcd3a1e9; half of that, rounded down.
    assert derive(7, "batches", round=3, client=2) == 0x925B8A47FCD3A1E9 // 2
    # printf '0/initial model/0/0' | sha256sum begins with 0c366c70be3039a1.
    assert derive(0, "initial model") == 0x0C366C70BE3039A1 // 2


def test_derive_fits_in_63_bits() -> None:
    seeds = [derive(seed, "batches") for seed in range(500)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62  # the upper half is used as well


def test_every_part_of_the_name_counts() -> None:
    numbers = (0, 1, 11, 12, 112)  # 1 and 12 must not read like 11 and 2
    names = itertools.product(numbers, ("batches", "posterior"), numbers, numbers)
    seeds = {derive(seed, purpose, round=round, client=client) for seed, purpose, round, client in names}
    assert len(seeds) == 5 * 2 * 5 * 5


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed must be >= 0, got -1"):
        derive(-1, "batches")


def test_generators_repeat_themselves_and_differ_between_clients() -> None:
    def draw(client: int) -> torch.Tensor:
        return torch.rand(4000, generator=generator(1, "batches", round=2, client=client))

    assert torch.equal(draw(0), draw(0))
    together = torch.stack([draw(0), draw(1)])
    # The correlation of independent streams is 0 +- 1 / sqrt(4000) = 0.016.
    assert abs(float(torch.corrcoef(together)[0, 1])) < 5 * 0.016
    first = numpy_generator(1, "partition").random(5)
    assert np.array_equal(first, numpy_generator(1, "partition").random(5))
    assert not np.array_equal(first, numpy_generator(2, "partition").random(5))


def test_no_global_state_is_read_or_moved() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    np.random.seed(0)  # noqa: NPY002 (the global state is what is tested)
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    first = torch.rand(3, generator=generator(5, "batches"))
    numpy_generator(5, "batches").random(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.random() == expected  # noqa: NPY002
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3, generator=generator(5, "batches")), first)


def test_streams_name_the_round() -> None:
    streams = Streams(3, 7)
    assert streams.torch("batches", 2).initial_seed() == derive(3, "batches", round=7, client=2)
    expected = np.random.default_rng(derive(3, "posterior", round=7)).random(2)
    assert np.array_equal(streams.numpy("posterior").random(2), expected)
    assert Streams(3).torch("batches").initial_seed() == derive(3, "batches", round=0)


def purposes() -> dict[str, set[str]]:
    """Return the purposes that the library draws for, and the modules that do: literal arguments of four names."""
    folder = Path(fedrepro.__file__).parent
    places = {"torch": 0, "numpy": 0, "generator": 1, "numpy_generator": 1}
    found: dict[str, set[str]] = {}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                place = places.get(name, len(node.args))
                argument = node.args[place] if place < len(node.args) else None
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    found.setdefault(argument.value, set()).add(path.stem)
    return found


def test_no_two_parts_of_the_library_share_a_stream() -> None:
    found = purposes()
    assert {"participants", "batches", "posterior", "distillation batches", "initial model", "partition"} <= set(
        found
    )
    assert {purpose: modules for purpose, modules in found.items() if len(modules) > 1} == {}
