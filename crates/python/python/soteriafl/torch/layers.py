"""Gradients of records from what went into a layer and what came back.

For one record of a linear layer, `g = e a^T` with its input `a` and the error `e` at its output;
so `|g|^2 = |e|^2 |a|^2`, and the clipped sum over records is one matrix product. A layer that is
applied at several places of a record (sequences, convolutions, repeated calls) adds up such
products; these are made explicitly, one gradient of this layer per record.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from .. import _soteriafl as native
from .check import call, count

__all__ = ["Capture", "Captured", "squared_lengths", "supported"]

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)

#: Up to here, squares and their products are taken in `float32`, which then holds them.
_LARGE = 2.0**20
#: An input above this takes the weight instead of the error, which beside it is so small that
#: rounding what is left of it would add to the clipped norm.
_LONG = 2.0**64
#: Numbers below 2^-63 may have no square there: of such a factor of a product and one of at most
#: `_LARGE` so much is lost.
_LOST = 2.0 ** (2 * (20 - 63))
#: Numbers that are copied at a time, so that copies stay in a core's cache and in memory that the
#: process already has: a fresh piece of many megabytes costs more than what is computed with it.
_PIECE = 1 << 17


def supported(module: nn.Module) -> str | None:
    """Why hooks cannot compute the module's gradients; `None` if they can."""
    owners: dict[int, str] = {}
    for name, layer in module.named_modules():
        for kind, parameter in layer.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            path = f"{name}.{kind}" if name else kind
            if id(parameter) in owners:
                return f"{path} is also {owners[id(parameter)]}"
            owners[id(parameter)] = path
            if type(layer) not in _LAYERS:
                return f"{path} belongs to {type(layer).__name__}"
            if isinstance(layer, (nn.Conv1d, nn.Conv2d)) and (
                layer.padding_mode != "zeros" or isinstance(layer.padding, str)
            ):
                return f"{name} pads by {layer.padding_mode} and {layer.padding!r}"
    return None


class Capture:
    """Hooks on the trainable layers of a module, whose parameters begin at `offsets`."""

    def __init__(self, module: nn.Module, offsets: dict[int, int], dimension: int) -> None:
        self._offsets, self._dimension = offsets, dimension
        self._calls: list[tuple[nn.Module, Tensor, int, Tensor, int]] | None = None
        self._repeated: set[nn.Module] = set()
        for layer in module.modules():
            if any(p.requires_grad for p in layer.parameters(recurse=False)):
                layer.register_forward_hook(self._remember)
                if not isinstance(layer, nn.Linear):
                    self._repeated.add(layer)

    @property
    def explicit_numbers(self) -> int:
        """Numbers per record of the layers whose gradients are made explicitly."""
        weights = (layer.weight for layer in self._repeated)
        return sum(weight.numel() for weight in weights if isinstance(weight, Tensor))

    def _remember(self, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        if self._calls is not None:
            a = inputs[0].detach()
            self._calls.append((layer, a, a._version, output, output._version))

    def run(self, module: nn.Module, X: Any, total: Callable[[Any], Tensor]) -> Captured:
        """One forward and one backward pass."""
        self._calls = []
        try:
            with torch.enable_grad():
                outputs = call(module, X)
                loss = total(outputs)
            calls = self._calls
        finally:
            self._calls = None
        for _, a, before, output, version in calls:
            if a._version != before or output._version != version:
                raise RuntimeError("a tensor was changed in place")
        errors = torch.autograd.grad(loss, [output for *_, output, _ in calls], allow_unused=True)
        pairs: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}
        for (layer, a, *_), e in zip(calls, errors, strict=True):
            if e is not None:
                pairs.setdefault(layer, []).append((a, e))
        parts = [self._part(layer, found) for layer, found in pairs.items()]
        return Captured(parts, count(X), self._dimension)

    def _part(self, layer: nn.Module, pairs: list[tuple[Tensor, Tensor]]) -> _Part:
        weight = self._offset(layer.weight)
        bias = self._offset(layer.bias)
        if isinstance(layer, nn.Linear):
            if len(pairs) == 1 and pairs[0][0].ndim == 2:
                a, e = pairs[0]
                return _Part(weight, bias, a.shape[1], e.shape[1], a, e, None)
            self._repeated.add(layer)
            flat = [(_places(a), _places(e)) for a, e in pairs]
            rows = reduce(operator.add, [torch.bmm(e.transpose(1, 2), a) for a, e in flat])
            biases = reduce(operator.add, [e.sum(1) for _, e in flat])
            shape = layer.in_features, layer.out_features
        else:
            found = [_convolution(layer, a, e) for a, e in pairs]
            rows, biases = (reduce(operator.add, parts) for parts in zip(*found, strict=True))
            out = layer.weight.shape[0]
            shape = layer.weight[0].numel(), out
        return _Part(weight, bias, *shape, None, biases, rows.flatten(1))

    def _offset(self, parameter: Tensor | None) -> int | None:
        return None if parameter is None else self._offsets.get(id(parameter))


def _places(values: Tensor) -> Tensor:
    """Record, place, number."""
    return values.reshape(len(values), -1, values.shape[-1])


def _convolution(layer: Any, a: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """Per record, the gradients of weights and of biases: errors times what the kernel saw."""
    kernel, dilation, padding, stride = (
        layer.kernel_size, layer.dilation, layer.padding, layer.stride
    )  # fmt: skip
    if a.ndim == 3:
        a, e = a[:, :, None], e[:, :, None]
        kernel, dilation, stride = (1, *kernel), (1, *dilation), (1, *stride)
        padding = (0, *padding)
    a, e = a.contiguous(), e.contiguous()
    records, groups, places = len(a), layer.groups, e.shape[2:].numel()
    outputs, inputs = e.shape[1] // groups, a.shape[1] // groups * kernel[0] * kernel[1]
    rows = a.new_empty(records, groups, outputs, inputs)
    most = max(1, _PIECE // max(1, groups * inputs * places))
    for start in range(0, records, most):
        piece = slice(start, start + most)
        seen = a[piece]
        if any(padding):
            seen = functional.pad(seen, (padding[1], padding[1], padding[0], padding[0]))
        by_record, by_channel, down, along = seen.stride()
        patches = seen.as_strided(
            (*seen.shape[:2], *kernel, *e.shape[2:]),
            (by_record, by_channel, dilation[0] * down, dilation[1] * along,
             stride[0] * down, stride[1] * along),
        ).reshape(-1, inputs, places)  # fmt: skip
        errors = e[piece].view(-1, outputs, places)
        torch.bmm(errors, patches.transpose(1, 2), out=rows[piece].view(-1, outputs, inputs))
    return rows.view(records, -1), e.flatten(2).sum(2)


@dataclass
class _Part:
    """One layer: `weight` and `bias` are where its parameters begin, `None` if frozen."""

    weight: int | None
    bias: int | None
    inputs: int
    outputs: int
    #: What came in, for layers applied once.
    a: Tensor | None
    #: What came back, summed over places: the gradient of the bias.
    e: Tensor
    #: Gradients of the weight, for layers applied at several places.
    rows: Tensor | None
    #: The largest squared length of what came in, where it is known.
    longest: float | None = field(default=None, init=False)

    def weights(self) -> slice:
        assert self.weight is not None
        return slice(self.weight, self.weight + self.inputs * self.outputs)

    def biases(self) -> slice:
        assert self.bias is not None
        return slice(self.bias, self.bias + self.outputs)

    def squared_norms(self, mask: Tensor | None) -> NDArray[np.float64]:
        """In double precision: squares of numbers that `float32` holds may be out of its range,
        and a norm that is lost would not be clipped."""
        if mask is not None:
            return self._selected(mask)
        squares = squared_lengths(self.e)
        total = np.zeros(len(squares)) if self.bias is None else squares
        if self.weight is None:
            return total
        if self.rows is not None:
            return total + squared_lengths(self.rows)
        assert self.a is not None
        lengths = squared_lengths(self.a)
        self.longest = float(lengths.max())
        return total + squares * lengths

    def _selected(self, mask: Tensor) -> NDArray[np.float64]:
        parts = [part for part in (self.a, self.e, self.rows) if part is not None]
        kind = mask.dtype
        if any(not bool(part.abs().amax() <= _LARGE) for part in parts):
            kind = torch.float64
        mask, squares = mask.to(kind), self.e.to(kind).square()
        total = torch.zeros(len(self.e), dtype=torch.float64)
        if self.rows is not None and self.weight is not None:
            total += self.rows.to(kind).square() @ mask[self.weights()]
        elif self.a is not None and self.weight is not None:
            seen = mask[self.weights()].view(self.outputs, self.inputs)
            total += (torch.mm(self.a.to(kind).square(), seen.T) * squares).sum(1)
        if self.bias is not None:
            total += squares @ mask[self.biases()]
        if kind != torch.float64:
            # What was too small to be squared, at most.
            total += _LOST * (self.inputs + 1) * self.outputs
        found: NDArray[np.float64] = total.numpy()
        return found

    def add_to(self, total: Tensor, weights: Tensor, bad: Tensor | None) -> None:
        a, e, rows = self.a, self.e, self.rows
        if bad is not None:
            e = torch.where(bad, 0.0, e)
            a = None if a is None else torch.where(bad, 0.0, a)
            rows = None if rows is None else torch.where(bad, 0.0, rows)
        if self.weight is not None:
            target = total[self.weights()]
            if rows is not None:
                target += weights @ rows
            elif a is not None:
                left = weights[:, None]
                # Of what is nan nothing is known: then the largest number is looked for.
                short = self.longest is not None and self.longest <= _LONG**2
                if not short and a.numel() and bool(a.abs().amax() > _LONG):
                    long = a.abs().amax(1, keepdim=True) > _LONG
                    a = torch.where(long, a * left, a)
                    left = torch.where(long, 1.0, left)
                target.view(self.outputs, self.inputs).addmm_((e * left).T, a)
        if self.bias is not None:
            total[self.biases()] += weights @ e

    def explicit(self, found: Tensor) -> None:
        if self.weight is not None:
            if self.rows is not None:
                found[:, self.weights()] = self.rows
            elif self.a is not None:
                products = self.e[:, :, None] * self.a[:, None, :]
                found[:, self.weights()] = products.flatten(1)
        if self.bias is not None:
            found[:, self.biases()] = self.e


def squared_lengths(rows: Tensor) -> NDArray[np.float64]:
    """The squared length of every row, in double precision."""
    return native.squared_lengths(rows.contiguous().numpy(), torch.get_num_threads())


class Captured:
    """What a batch left in every layer."""

    def __init__(self, parts: list[_Part], records: int, dimension: int) -> None:
        self._parts, self._records, self._dimension = parts, records, dimension

    def squared_norms(self, chosen: Tensor | None) -> NDArray[np.float64]:
        """`|g_j|^2`, over all coordinates or over the chosen ones."""
        mask = None
        if chosen is not None:
            mask = torch.zeros(self._dimension)
            mask[chosen] = 1.0
        norms = np.zeros(self._records)
        for part in self._parts:
            norms += part.squared_norms(mask)
        return norms

    def add_to(self, total: Tensor, weights: NDArray[np.float32]) -> None:
        """Adds `sum_j weights_j g_j`; records of weight 0 may hold anything."""
        # A norm of zero has weight 1, so weight 0 is a gradient that is not finite.
        odd = None if weights.all() else torch.from_numpy(weights == 0.0)[:, None]
        scales = torch.from_numpy(weights)
        for part in self._parts:
            part.add_to(total, scales, odd)

    def explicit(self) -> Tensor:
        """The gradients themselves, one row per record."""
        found = torch.zeros(self._records, self._dimension)
        for part in self._parts:
            part.explicit(found)
        return found
