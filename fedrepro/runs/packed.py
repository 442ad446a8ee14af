"""A run's state as plain values and tensors, with what shows whether they are whole and whose they are."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedrepro.core.stack import Layout, Stack
from fedrepro.core.state import State

DIGEST = "digest"  # under which name the digest of all other values is kept


def digest_of(value: Any) -> str:
    """Return a digest of nested plain values and tensors: of types, names, numbers and every byte."""
    found = hashlib.blake2b(digest_size=16)
    _add(found, value)
    return found.hexdigest()


def _add(found: "hashlib.blake2b", value: Any) -> None:
    if isinstance(value, Tensor):
        found.update(f"tensor {value.dtype} {tuple(value.shape)}:".encode())
        found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        found.update(f"names {len(value)}:".encode())
        for name in sorted(value):
            _add(found, name)
            _add(found, value[name])
    elif isinstance(value, list | tuple):
        found.update(f"list {len(value)}:".encode())
        for held in value:
            _add(found, held)
    else:
        said = repr(value).encode()
        found.update(f"{type(value).__name__} {len(said)}:".encode() + said)


def sealed(content: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
    """Return content with facts that tell whose it is, and a digest of all."""
    whole = on_cpu(dict(content) | facts)
    return whole | {DIGEST: digest_of(whole)}


def unsealed(content: Any, **facts: Any) -> dict[str, Any]:
    """Return what was sealed without its digest.

    Args:
        content: what a file holds.
        facts: what it must say of itself; None for what is not known.

    Raises:
        ValueError: if it is not what was written, says too little of itself, or is of another run.
    """
    if not isinstance(content, dict):
        raise ValueError("no names and values")
    found = {name: value for name, value in content.items() if name != DIGEST}
    if DIGEST not in content or content[DIGEST] != digest_of(found):
        raise ValueError("its content is not what was written")
    for name, wanted in facts.items():
        if wanted is not None and name not in found:
            raise ValueError(f"it does not say of which {name} it is")
        if wanted is not None and found[name] != wanted:
            raise ValueError(f"it is of {name} {found[name]}, not {wanted}")
    return found


def packed(stack: Stack) -> dict[str, Tensor]:
    """Return a stack as its tensors."""
    return {"params": stack.params, "buffers": stack.buffers, "counters": stack.counters}


def _stack(packed: dict[str, Tensor], layout: Layout) -> Stack:
    return Stack(layout, packed["params"], packed["buffers"], packed["counters"])


def packed_state(state: State) -> dict[str, Any]:
    """Return a state as plain values: tensors, and stacks as their tensors."""
    memory = {name: packed(held) if isinstance(held, Stack) else held for name, held in state.memory.items()}
    plain: dict[str, Any] = {"round": state.round, **packed(state.models), "memory": memory}
    return plain | ({"further": [packed_state(other) for other in state.further]} if state.further else {})


def unpacked_state(saved: dict[str, Any], layouts: Sequence[Layout]) -> State:
    """Return the state of plain values, of architectures of which the first is the state's own."""
    own, *others = layouts
    memory = {
        name: _stack(held, own) if isinstance(held, dict) else held for name, held in saved["memory"].items()
    }
    further = tuple(
        unpacked_state(one, [layout]) for one, layout in zip(saved.get("further", []), others, strict=True)
    )
    return State(saved["round"], _stack(saved, own), memory, further)


def on_cpu(value: Any) -> Any:
    """Return nested values with all tensors in the main memory."""
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: on_cpu(held) for key, held in value.items()}
    return [on_cpu(held) for held in value] if isinstance(value, list) else value
