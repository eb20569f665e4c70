"""Which modules and losses treat every record by itself.

A record's gradient can only be bounded if the module and the loss look at that record alone.
:func:`check` refuses layers that do not, by name and with what to use instead, and compares what
it is given: records alone with records together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import DataError, SoteriaError, UnsupportedModule

__all__ = ["check", "reduction_of"]

Loss = Callable[[Any, Tensor], Tensor]

#: Records that are compared alone and together.
_COMPARED = 32
#: What PyTorch raises where shapes, dtypes or labels do not fit.
_MISFITS = (RuntimeError, TypeError, ValueError, IndexError)
#: Relative differences between a record alone and among others that count as rounding.
_ROUNDING = 1e-4


def check(
    module: nn.Module, loss: Loss | None = None, X: Any = None, y: Tensor | None = None
) -> None:
    """Raises :class:`~soteriafl.UnsupportedModule` if records of `module` cannot be bounded.

    Layers are judged by their types. With two records or more in `X`, their outputs alone are
    compared with their outputs together; with `loss` and `y`, so is the loss.

    >>> from torch import nn
    >>> check(nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)))
    Traceback (most recent call last):
    ...
    soteriafl.errors.UnsupportedModule: `module`: layer 1 (BatchNorm2d) mixes the records of a \
batch: use nn.GroupNorm or nn.LayerNorm, or call .eval() on it if its statistics are fixed
    """
    if not isinstance(module, nn.Module):
        raise UnsupportedModule(
            f"`module` must be a torch.nn.Module, found {type(module).__name__}"
        )
    _check_parameters(module)
    for name, layer in module.named_modules():
        _check_layer(name, layer)
    if X is not None:
        _compare(module, loss, X, y)


def _check_parameters(module: nn.Module) -> None:
    trainable = 0
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(tensor, nn.parameter.UninitializedTensorMixin):
            raise UnsupportedModule(
                f"`module`: {name} has no shape yet: call the module once on a batch"
            )
        if tensor.device.type == "meta":
            raise UnsupportedModule(
                f"`module`: {name} is on device meta, it has a shape but no numbers: make room by "
                'module.to_empty(device="cpu"), and load or initialise its weights'
            )
        if tensor.device.type != "cpu":
            raise UnsupportedModule(
                f"`module`: {name} is on {tensor.device}: move the module to the processor, "
                'module.to("cpu")'
            )
        if tensor.is_complex():
            raise UnsupportedModule(f"`module`: {name} is complex: only real parameters work")
        if not isinstance(tensor, nn.Parameter):
            continue
        if tensor.dtype != torch.float32:
            raise UnsupportedModule(
                f"`module`: {name} has dtype {str(tensor.dtype).removeprefix('torch.')}: messages "
                "hold float32, so call module.float()"
            )
        trainable += tensor.requires_grad * tensor.numel()
    if not trainable:
        raise UnsupportedModule("`module` has no parameter with requires_grad=True")


def _check_layer(name: str, layer: nn.Module) -> None:
    kind = type(layer).__name__
    named = f"`module`: layer {name} ({kind})" if name else f"`module` ({kind})"
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm):
        if layer.training and layer.track_running_stats:
            raise UnsupportedModule(
                f"{named} keeps statistics of past records: use track_running_stats=False"
            )
    elif isinstance(layer, nn.modules.batchnorm._BatchNorm) and (
        layer.training or layer.running_mean is None
    ):
        fixed = ", or call .eval() on it if its statistics are fixed"
        kept = "" if layer.running_mean is None else fixed
        raise UnsupportedModule(
            f"{named} mixes the records of a batch: use nn.GroupNorm or nn.LayerNorm{kept}"
        )
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
        if layer.max_norm is not None:
            raise UnsupportedModule(
                f"{named} changes its weights when it is called: use max_norm=None"
            )
        if layer.sparse or layer.scale_grad_by_freq:
            raise UnsupportedModule(
                f"{named} needs sparse=False and scale_grad_by_freq=False: the frequency of a "
                "word in a batch is that of other records, too"
            )
    if kind in ("_SpectralNorm", "SpectralNorm"):
        raise UnsupportedModule(
            f"{named} updates a buffer when it is called: use nn.utils.parametrizations.weight_norm"
        )


def _described(name: str, values: Any) -> str:
    """What an argument is, for those who must find out what does not fit."""
    parts = values if isinstance(values, tuple) else (values,)
    kinds = [f"{str(p.dtype).removeprefix('torch.')} of shape {list(p.shape)}" for p in parts]
    return f"{name} is {', '.join(kinds)}".strip()


def at(X: Any, rows: Any) -> Any:
    """Some records of a tensor, or of a tuple of tensors."""
    return tuple(part[rows] for part in X) if isinstance(X, tuple) else X[rows]


def call(module: Callable[..., Any], X: Any) -> Any:
    """`module` on a tensor, or on a tuple of tensors."""
    return module(*X) if isinstance(X, tuple) else module(X)


def count(X: Any) -> int:
    return len(X[0]) if isinstance(X, tuple) else len(X)


def _compare(module: nn.Module, loss: Loss | None, X: Any, y: Tensor | None) -> None:
    """Outputs and losses of records alone and together, on a copy of the module."""
    rows = min(count(X), _COMPARED)
    X = at(X, slice(0, rows))
    module = copy.deepcopy(module)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            call(module, X)
        except _MISFITS as error:
            raise DataError(
                f"`module` cannot be called on these records: give it the shape and dtype that it "
                f"takes. {_described('X', X)}; PyTorch says: {error}"
            ) from error
        for name, buffer in module.named_buffers():
            if not torch.equal(buffer, before[name]):
                raise UnsupportedModule(
                    f"`module` changes its buffer {name} when it is called: what it keeps of one "
                    "record would reach others; make it constant"
                )
        module.eval()
        together = call(module, X)
        if not isinstance(together, Tensor):
            raise UnsupportedModule(
                f"`module` must return one tensor, it returned {type(together).__name__}"
            )
        if together.ndim == 0 or len(together) != rows:
            raise UnsupportedModule(
                f"`module` must return one row per record: {rows} records gave the shape "
                f"{tuple(together.shape)}"
            )
        if rows < 2:
            return
        alone = torch.cat([call(module, at(X, slice(j, j + 1))) for j in range(rows)])
        if not _close(alone, together):
            raise UnsupportedModule(
                "`module` looks at the batch: a record's output changes with the records beside it"
            )
    if loss is not None and y is not None:
        reduction_of(loss, together, y[:rows])


def _close(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape:
        return False
    found, expected = found.double(), expected.double()
    if not bool(torch.isfinite(expected).all()):
        return True  # Nothing can be said; gradients that are not finite count as zero.
    scale = float(expected.abs().max()) + 1e-6
    return bool((found - expected).abs().max() <= _ROUNDING * scale)


def reduction_of(loss: Loss, outputs: Tensor, y: Tensor) -> str:
    """How `loss` treats several records: their "mean", their "sum", or "none", one loss each.

    Raises :class:`~soteriafl.UnsupportedModule` if it is none of these: then it looks at the
    batch.
    """
    rows = min(len(outputs), _COMPARED)
    outputs, y = outputs[:rows].detach(), y[:rows]
    try:
        return _reduction(loss, outputs, y)
    except SoteriaError:
        raise
    except _MISFITS as error:
        raise DataError(
            "`loss` cannot be computed: give labels of the shape, dtype and range that it takes. "
            f"{_described('y', y)}, what the module returns {_described('', outputs)}; PyTorch "
            f"says: {error}"
        ) from error


def _reduction(loss: Loss, outputs: Tensor, y: Tensor) -> str:
    rows, each = len(y), []
    for j in range(rows):
        one = loss(outputs[j : j + 1], y[j : j + 1])
        if not isinstance(one, Tensor) or one.numel() != 1:
            raise UnsupportedModule(
                "`loss` must give one number for one record, it gave "
                f"{tuple(one.shape) if isinstance(one, Tensor) else type(one).__name__}"
            )
        each.append(one.reshape(()))
    alone = torch.stack(each)
    together = loss(outputs, y)
    if together.numel() == rows and together.ndim > 0 and _close(together.reshape(rows), alone):
        return "none"
    if together.numel() == 1:
        together = together.reshape(())
        if _close(together, alone.mean()):
            return "mean"
        if _close(together, alone.sum()):
            return "sum"
    raise UnsupportedModule(
        "`loss` looks at the batch: the loss of several records is neither the mean nor the sum "
        "of their losses (class weights divide by those of the batch: weight the records with "
        'reduction="none")'
    )
