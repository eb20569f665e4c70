"""Records of clients as tensors, and what the native part asks about them by number."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DataError
from .check import at, count
from .per_record import PerRecord

__all__ = ["Problem", "check_labels", "tensors"]

#: Records whose losses are computed at a time.
_EVALUATED = 512


def tensors(name: str, dataset: Any) -> tuple[Any, Tensor]:
    """Features and targets of a data set: a pair `(X, y)`, or a `torch.utils.data.Dataset` of
    such pairs. `X` may be a tuple of tensors, which the module then gets as several arguments."""
    if isinstance(dataset, torch.utils.data.TensorDataset):
        *parts, y = dataset.tensors
        X: Any = parts[0] if len(parts) == 1 else tuple(parts)
    elif isinstance(dataset, (tuple, list)) and len(dataset) == 2:
        X, y = dataset
        X = tuple(X) if isinstance(X, (tuple, list)) else X
    elif hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        pairs = [dataset[j] for j in range(len(dataset))]
        if not pairs or not all(
            isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs
        ):
            raise DataError(f"`{name}` must hold pairs of features and a target, and at least one")
        try:
            X = torch.stack([torch.as_tensor(x) for x, _ in pairs])
            y = torch.stack([torch.as_tensor(t) for _, t in pairs])
        except (RuntimeError, TypeError, ValueError) as error:
            raise DataError(f"`{name}`: records must have one shape each: {error}") from None
    else:
        raise DataError(
            f"`{name}` must be a pair (X, y) or a data set of pairs, found {type(dataset).__name__}"
        )
    parts = X if isinstance(X, tuple) else (X,)
    found = [_tensor(f"{name}: X", part) for part in parts]
    y = _tensor(f"{name}: y", y)
    rows = len(y) if y.ndim else 0
    if rows == 0:
        raise DataError(f"`{name}` holds no records")
    for part in found:
        if part.ndim == 0 or len(part) != rows:
            raise DataError(
                f"`{name}`: X has the shape {tuple(part.shape)}, y {tuple(y.shape)}: "
                "one row of each per record"
            )
    return (tuple(found) if isinstance(X, tuple) else found[0]), y


def _tensor(name: str, values: Any) -> Tensor:
    if isinstance(values, np.ndarray) and values.dtype == object:
        raise DataError(f"`{name}` is an array of objects: give numbers")
    try:
        tensor = torch.as_tensor(values).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"`{name}` is no tensor: {error}") from None
    if tensor.device.type != "cpu":
        raise DataError(f'`{name}` is on {tensor.device}: move it, .to("cpu")')
    if tensor.is_complex() or tensor.dtype in (torch.float16, torch.bfloat16):
        raise DataError(
            f"`{name}` has dtype {str(tensor.dtype).removeprefix('torch.')}: call .float()"
        )
    if tensor.is_floating_point():
        if not bool(torch.isfinite(tensor).all()):
            raise DataError(f"`{name}` holds values that are not finite")
        return tensor.to(torch.float32).clone()
    return tensor.to(torch.int64).clone() if tensor.dtype != torch.bool else tensor.clone()


def check_labels(model: PerRecord, sets: Mapping[str, tuple[Any, Tensor]]) -> None:
    """That every label is the number of an output, where the loss is torch's own cross-entropy: one
    that is not would end a run in the round that draws its record."""
    settings = model.cross_entropy
    X, y = next(iter(sets.values()))
    if settings is None or not len(y):
        return
    _, outputs = model.losses(model.flatten(), at(X, slice(0, 1)), y[:1])
    if not classifies(outputs, y):
        return
    classes = outputs.shape[1]
    for name, (_, labels) in sets.items():
        unfit = (labels < 0) | (labels >= classes)
        unfit &= labels != settings.get("ignore_index", -100)
        if bool(unfit.any()):
            raise DataError(
                f"`{name}`: y holds the label {int(labels[unfit][0])}, and `module` has {classes} "
                f"outputs: labels are whole numbers from 0 to {classes - 1}"
            )


class Problem:
    """A module, a loss, and the records of every client (and of a test set), numbered in order.

    This is what the native part asks: it knows records by their numbers alone.
    """

    def __init__(
        self, model: PerRecord, clients: Sequence[tuple[Any, Tensor]], *, chunk: int | None = None
    ) -> None:
        self.model = model
        self._sets = list(clients)
        counts = [len(y) for _, y in self._sets]
        self._first = np.concatenate([[0], np.cumsum(counts)]).tolist()
        self.counts = counts
        self.dimension = model.dimension
        self.parameters = model.memory
        self.chunk = chunk or model.chunk

    def _records(self, numbers: NDArray[np.int64]) -> tuple[Any, Tensor]:
        """These records, which belong to one client."""
        place = bisect.bisect_right(self._first, int(numbers[0])) - 1
        X, y = self._sets[place]
        first = self._first[place]
        if numbers[-1] - numbers[0] + 1 == len(numbers) and (np.diff(numbers) == 1).all():
            rows: Any = slice(int(numbers[0]) - first, int(numbers[-1]) - first + 1)
        else:
            rows = torch.from_numpy(numbers - first)
        return at(X, rows), y[rows]

    def gradients(
        self, model: NDArray[np.float32], numbers: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        X, y = self._records(numbers)
        found: NDArray[np.float32] = self.model.gradients(model, X, y, records=numbers).numpy()
        return np.ascontiguousarray(found)

    def clipped_sum(
        self,
        model: NDArray[np.float32],
        numbers: NDArray[np.int64],
        clip: float | None,
        over_selected: bool,
        coordinates: NDArray[np.int64] | None,
    ) -> NDArray[np.float32]:
        X, y = self._records(numbers)
        found: NDArray[np.float32] = self.model.clipped_sum(
            model,
            X,
            y,
            clip=clip,
            coordinates=coordinates,
            over="selected" if over_selected else "all",
            records=numbers,
        ).numpy()
        return found

    def outcomes(
        self, model: NDArray[np.float32], numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Losses of records, and whether the most likely class is right; layers as in `eval()`."""
        X, y = self._records(numbers)
        losses, right = [], []
        for start in range(0, count(X), _EVALUATED):
            rows = slice(start, start + _EVALUATED)
            one, outputs = self.model.losses(model, at(X, rows), y[rows])
            losses.append(one)
            right.append(_right(outputs, y[rows]))
        return torch.cat(losses).numpy(), torch.cat(right).numpy()


def classifies(outputs: Tensor, y: Tensor) -> bool:
    """Whether there is a right class: targets are whole numbers, or outputs one logit each."""
    whole = not y.is_floating_point() and y.ndim == 1 and outputs.ndim == 2
    return whole and outputs.shape[1] > 1


def _right(outputs: Tensor, y: Tensor) -> Tensor:
    if classifies(outputs, y):
        return outputs.argmax(1) == y
    return torch.zeros(len(y), dtype=torch.bool)
