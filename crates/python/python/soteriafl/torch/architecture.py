"""What a module is, in public: names and shapes of what is trained, and a digest of the rest."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["architecture_of", "bytes_of"]


def architecture_of(module: nn.Module) -> tuple[list[str], str]:
    """Names and shapes of the trained parameters, in their order, and a digest of them, of the
    layers with their settings, as they print, of which are in training mode, and of the numbers in
    frozen parameters and buffers. Code and constants that do not print are not in it."""
    named = dict(module.named_parameters())
    parameters = [
        f"{name}[{','.join(map(str, parameter.shape))}]"
        for name, parameter in named.items()
        if parameter.requires_grad
    ]
    frozen = {name: p for name, p in named.items() if not p.requires_grad}
    digest = hashlib.sha256()
    modes = [layer.training for layer in module.modules()]
    for part in (repr(module), json.dumps(modes), json.dumps(parameters)):
        digest.update(len(part.encode()).to_bytes(8, "little") + part.encode())
    for name, values in sorted({**frozen, **dict(module.named_buffers())}.items()):
        held = values.detach().contiguous()
        about = f"{name} {held.dtype} {tuple(held.shape)}"
        digest.update(len(about.encode()).to_bytes(8, "little") + about.encode())
        digest.update(bytes_of(held.reshape(1, -1)).tobytes())
    return parameters, digest.hexdigest()


def bytes_of(part: Tensor) -> Any:
    """The bytes of every record, one row each."""
    rows = part.reshape(len(part), -1).contiguous()
    return rows.view(torch.uint8).numpy()
