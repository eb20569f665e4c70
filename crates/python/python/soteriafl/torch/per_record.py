"""Clipped gradients of single records of a PyTorch module.

There are three ways to compute them, which agree up to rounding:

========  ==================================================================================
"hooks"   one forward and one backward pass for the whole batch; what came into each layer and
          what came back give every record's norm, and the clipped sum, without its gradient.
          For trainable `nn.Linear`, `nn.Conv1d` and `nn.Conv2d` layers; all others must be frozen.
"vmap"    `torch.func.vmap` of the gradient, in chunks of a fixed size: any layers that
          `torch.func` takes.
"exact"   one record after the other by plain autograd: anything, and a record's numbers cannot
          depend on the records beside it even in their last bit. Secure noise needs this.
========  ==================================================================================

"auto" takes the first that works for the module; "hooks" only if all of its layers are of
`torch.nn`, of which it is known that they look at one record. Memory is bounded by `chunk`
gradients or 32 MB of them ("vmap", one at least) or by 64 MB of them ("hooks", for layers that are
applied at several places of a record).

Where coins are drawn (dropout), "hooks" and "vmap" give a record the coins of its place in the
batch. In a batch that is drawn, a record that is there or not moves all places behind it, and so
all of their gradients: it would be hidden by no noise for one record. There only "exact" will do,
where a record's coins follow from the seed, the parameters and its own number. With `nn.RReLU`,
which draws as many coins as numbers are below zero, only "exact" will do anywhere.
"""

from __future__ import annotations

import copy
import hashlib
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from .. import _soteriafl as native
from ..errors import ConfigError, DataError, UnsupportedModule
from .check import Loss, at, call, check, count, reduction_of
from .layers import Capture, squared_lengths, supported

__all__ = ["PerRecord"]

Gradients = Literal["auto", "hooks", "vmap", "exact"]
Parameters: TypeAlias = Tensor | NDArray[np.float32] | Mapping[str, Tensor]

#: Numbers of explicit gradients that "hooks" holds at a time.
_EXPLICIT = 1 << 24
#: Numbers of gradients that "vmap" makes at a time: more would be new memory in every chunk, which
#: costs more than larger chunks gain.
_MADE = 1 << 23


class PerRecord:
    """Gradients of `loss(module(X), y)`, record by record, for the parameters with `requires_grad`.

    `module` is copied and never changed; layers keep their own `train()` or `eval()` mode. `loss`
    takes outputs and targets of some records; its reduction does not matter ("mean", "sum" or
    "none"), because every record is taken alone. The coins of dropout come from `seed`, the
    parameters and the record. With `own_coins=False`, for batches that always hold the same records
    in the same order, they may come from the place in the batch, which is faster.

    >>> import torch
    >>> from torch import nn
    >>> model = PerRecord(nn.Linear(3, 2), nn.functional.cross_entropy)
    >>> X, y = torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])
    >>> model.gradients(model.flatten(), X, y).shape, model.mode
    (torch.Size([5, 8]), 'hooks')
    >>> bool(model.clipped_sum(model.flatten(), X[:1], y[:1], clip=0.1).norm() <= 0.1)
    True
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        gradients: Gradients = "auto",
        chunk: int = 32,
        *,
        seed: int = 0,
        own_coins: bool = True,
    ) -> None:
        check(module)
        if not callable(loss):
            raise ConfigError("`loss` must be a function of outputs and targets")
        if gradients not in ("auto", "hooks", "vmap", "exact"):
            raise ConfigError(
                f"`gradients` must be auto, hooks, vmap or exact, found {gradients!r}"
            )
        if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
            raise ConfigError(f"`chunk` must be a whole number of at least 1, found {chunk!r}")
        self.chunk = chunk
        self._loss, self._seed, self._lock = loss, int(seed), threading.RLock()
        self._module = _copy(module)
        named = [(name, p) for name, p in self._module.named_parameters() if p.requires_grad]
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._shapes = [parameter.shape for parameter in self._parameters]
        self._sizes = [parameter.numel() for parameter in self._parameters]
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)]).tolist()
        #: Number of parameters.
        self.dimension: int = self._starts[-1]
        self._start = torch.cat([p.detach().reshape(-1) for p in self._parameters]).clone()
        # All parameters are parts of one vector, so that a model is loaded by one copy.
        self._vector = self._start.clone()
        #: The same memory for others: given as parameters, it is taken as it is.
        self.memory: NDArray[np.float32] = self._vector.numpy()
        for parameter, part in zip(self._parameters, self._parts(self._vector), strict=True):
            parameter.data = part
        self._evaluated = copy.deepcopy(
            self._module, {id(p): p for p in [*self._module.parameters(), *self._module.buffers()]}
        ).eval()
        self.stochastic = _draws(self._module)
        self._reduction: str | None = None
        #: The settings of the loss, if it is torch's own cross-entropy.
        self.cross_entropy = _cross_entropy(loss)
        hooks = supported(self._module)
        self._capture = (
            Capture(self._module, self._offsets(), self.dimension) if hooks is None else None
        )
        if gradients == "hooks" and hooks is not None:
            raise UnsupportedModule(
                f'`gradients = "hooks"` is for Linear, Conv1d and Conv2d layers alone: {hooks}; '
                'use gradients="vmap"'
            )
        self._asked, self._mode = gradients, None if gradients in ("auto", "hooks") else gradients
        self._differentiate: Callable[..., Any] | None = None
        self._sum: Tensor | None = None
        self._own_coins = self._looked = False
        if own_coins or _draws_by_value(self._module):
            self.require_own_coins()

    def require_own_coins(self) -> None:
        """From now on a record's coins are its own, wherever it stands: with dropout, "exact"."""
        self._own_coins = True
        if not self.stochastic or self._mode == "exact":
            return
        if self._asked != "auto" and _draws_by_value(self._module):
            raise ConfigError(
                f'`gradients = "{self._asked}"`: nn.RReLU draws a coin for every number below '
                "zero, so that one record moved the coins, and the gradients, of others: use "
                'gradients="exact" or "auto", or call .eval() on it'
            )
        if self._asked != "auto":
            raise ConfigError(
                f'`gradients = "{self._asked}"`: with dropout, coins would follow the places of a '
                "batch that is drawn, so that one record changed the gradients of others: use "
                'gradients="exact" or "auto", or call .eval() on the dropout layers'
            )
        self._mode = "exact"

    @property
    def mode(self) -> str:
        """How gradients are computed; "auto" until the first batch has decided."""
        return self._mode or self._asked

    def flatten(self, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        """Trainable parameters by name as one vector; those of the module unless given."""
        if parameters is None:
            return self._start.clone()
        if set(parameters) != set(self._names):
            raise DataError(f"`parameters` must have exactly the names {', '.join(self._names)}")
        return torch.cat([parameters[name].detach().reshape(-1) for name in self._names])

    def unflatten(self, vector: Tensor | NDArray[np.float32]) -> dict[str, Tensor]:
        """The parts of a vector of all trainable parameters, by name."""
        return dict(zip(self._names, self._parts(self._checked(vector)), strict=True))

    def gradients(
        self,
        parameters: Parameters,
        X: Any,
        y: Tensor,
        *,
        records: NDArray[np.int64] | None = None,
    ) -> Tensor:
        """One row per record. `records` are their numbers, for the coins of dropout."""
        with self._lock:
            self._load(parameters)
            self._check_coins(X, records)
            if count(X) == 0:
                return torch.zeros(0, self.dimension)
            mode = self._decide(X, y)
            if mode == "exact":
                return self._exact(X, y, records)
            if mode == "vmap":
                chunks = [
                    torch.cat([part.flatten(1) for part in found], 1)
                    for found, _ in self._chunks(X, y)
                ]
                return torch.cat(chunks)[: count(X)]
            pieces = (self._captured(*piece).explicit() for piece in self._pieces(X, y))
            return torch.cat(list(pieces))

    def clipped_sum(
        self,
        parameters: Parameters,
        X: Any,
        y: Tensor,
        *,
        clip: float | None,
        coordinates: Tensor | NDArray[np.int64] | None = None,
        over: Literal["all", "selected"] = "all",
        records: NDArray[np.int64] | None = None,
    ) -> Tensor:
        """`sum_j c_j g_j` on `coordinates` (all unless given), each gradient clipped by itself.

        `c_j` clips `g_j` to the norm `clip`, taken over all coordinates or over the selected ones
        alone. A record whose gradient is not finite adds nothing. With `clip=None` nothing is
        clipped, and the sum is that of one backward pass.
        """
        if over not in ("all", "selected"):
            raise ConfigError(f'`over` must be "all" or "selected", found {over!r}')
        if clip is not None and not 0 < clip < float("inf"):
            raise ConfigError(f"`clip` must be above 0, found {clip!r}")
        chosen = None if coordinates is None else torch.as_tensor(coordinates)
        measured = chosen if over == "selected" else None
        with self._lock:
            self._load(parameters)
            self._check_coins(X, records)
            if count(X) == 0:
                return torch.zeros(self.dimension if chosen is None else len(chosen))
            mode = self._decide(X, y)
            if clip is None and not (self.stochastic and self._own_coins):
                total = self._plain(X, y)
            elif mode == "hooks":
                total = self._empty(given_away=chosen is None)
                for piece in self._pieces(X, y):
                    found = self._captured(*piece)
                    weights = _weights(found.squared_norms(measured), clip)
                    found.add_to(total, weights)
            elif mode == "vmap" and clip is not None:
                total = self._sum_of_chunks(X, y, clip, measured, chosen is None)
            else:
                rows = self._exact(X, y, records)
                seen = rows if measured is None else rows[:, measured]
                total = _weighted(rows, _weights(squared_lengths(seen), clip))
            return total if chosen is None else total[chosen]

    def losses(self, parameters: Parameters, X: Any, y: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of every record and the outputs, with all layers in `eval()` mode."""
        with self._lock, torch.no_grad():
            self._load(parameters)
            outputs = call(self._evaluated, X)
            if self._reduced(outputs, y) == "none":
                return self._loss(outputs, y).reshape(-1), outputs
            each = torch.func.vmap(self._one_loss)(outputs, y)
            return each, outputs

    def module(self, parameters: Parameters) -> nn.Module:
        """A copy of the module with these parameters."""
        with self._lock:
            self._load(parameters)
            return _copy(self._module)

    # How a batch is computed.

    def _decide(self, X: Any, y: Tensor) -> str:
        """The way for this module, found at the first batch: two records agree with "exact"."""
        if self._mode is None:
            two = (at(X, slice(0, 2)), y[:2])
            # A layer of somebody's own may mix records where nobody compares: in training alone, or
            # for some records. By vmap it sees one record.
            own = [
                type(layer).__name__
                for layer in self._module.modules()
                if not f"{type(layer).__module__}.".startswith("torch.nn.")
            ]
            if self.stochastic and own and self._asked == "hooks":
                raise UnsupportedModule(
                    f'`gradients = "hooks"`: {own[0]} is a module of your own beside dropout, and '
                    'whether it mixes records in training cannot be seen; use gradients="vmap"'
                )
            hooks = self._capture is not None and not (own and self._asked == "auto")
            if hooks and self._agrees("hooks", *two):
                self._mode = "hooks"
            elif self._asked == "hooks":
                raise UnsupportedModule(
                    '`gradients = "hooks"`: the module uses parameters of a layer without calling '
                    'it, or changes tensors in place; use gradients="vmap"'
                )
            else:
                self._mode = "vmap" if self._agrees("vmap", *two) else "exact"
        return self._mode

    def _check_coins(self, X: Any, records: NDArray[np.int64] | None) -> None:
        if self._own_coins and not self._looked and count(X):
            # Coins that no layer tells of, as those of `functional.dropout`.
            if not self.stochastic and self._moves_coins(X):
                self.stochastic = True
                self.require_own_coins()
            self._looked = True
        if records is None and self.stochastic and self._own_coins:
            raise DataError(
                "`records`: with dropout, say the numbers of these records: by them each has coins "
                "of its own"
            )

    def _moves_coins(self, X: Any) -> bool:
        with _seeded(self._seed), torch.no_grad():
            before = torch.default_generator.get_state()
            call(self._module, at(X, slice(0, 1)))
            return not torch.equal(before, torch.default_generator.get_state())

    def _agrees(self, mode: str, X: Any, y: Tensor) -> bool:
        if self.stochastic:
            # Coins differ, so they are left out where the two are compared.
            drawing = [layer for layer in self._module.modules() if layer.training]
            self._module.eval()
            try:
                return self._compare(mode, X, y)
            finally:
                for layer in drawing:
                    layer.training = True
        return self._compare(mode, X, y)

    def _compare(self, mode: str, X: Any, y: Tensor) -> bool:
        expected = self._exact(X, y, None)
        try:
            if mode == "hooks":
                found = self._captured(X, y).explicit()
            else:
                parts, _ = next(iter(self._chunks(X, y)))
                found = torch.cat([part.flatten(1) for part in parts], 1)[: count(X)]
        except RuntimeError:
            return False
        finite = torch.isfinite(expected) & torch.isfinite(found)
        scale = expected[finite].abs().max() if bool(finite.any()) else torch.tensor(0.0)
        error = torch.where(finite, found - expected, 0.0).abs().max()
        return bool(error <= 1e-3 * scale + 1e-6)

    def _exact(self, X: Any, y: Tensor, records: NDArray[np.int64] | None) -> Tensor:
        rows = torch.empty(count(X), self.dimension)
        numbers = range(count(X)) if records is None else records.tolist()
        seed = self._coins()
        for j, number in enumerate(numbers):
            one = slice(j, j + 1)
            with _seeded(hash((seed, number)) if self.stochastic else seed):
                loss = self._loss(call(self._module, at(X, one)), y[one]).sum()
            if not loss.requires_grad:
                rows[j] = 0.0
                continue
            found = torch.autograd.grad(loss, self._parameters, allow_unused=True)
            for start, size, part in zip(self._starts, self._sizes, found, strict=False):
                rows[j, start : start + size] = 0.0 if part is None else part.reshape(-1)
        return rows

    def _chunks(self, X: Any, y: Tensor) -> Iterator[tuple[tuple[Tensor, ...], int]]:
        """Gradients of `chunk` records at a time, and how many of them are asked for: the last
        chunk is filled with copies of its first record."""
        if self._differentiate is None:
            self._differentiate = torch.func.vmap(
                torch.func.grad(self._functional), in_dims=(None, 0, 0), randomness="different"
            )
        parameters = dict(zip(self._names, self._parts(self._vector), strict=True))
        with _seeded(self._coins()), warnings.catch_warnings():
            # Some layers are slower than they could be, which is nobody's mistake.
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            size = max(1, min(self.chunk, _MADE // self.dimension))
            for start in range(0, count(X), size):
                asked = min(size, count(X) - start)
                rows: Any = slice(start, start + size)
                if asked < size:
                    rows = torch.arange(start, start + size)
                    rows[asked:] = start
                found = self._differentiate(parameters, at(X, rows), y[rows])
                yield tuple(found[name].detach() for name in self._names), asked

    def _functional(self, parameters: dict[str, Tensor], x: Any, y: Tensor) -> Tensor:
        one = tuple(part[None] for part in x) if isinstance(x, tuple) else (x[None],)
        outputs = torch.func.functional_call(self._module, parameters, one)
        return self._loss(outputs, y[None]).sum()

    def _sum_of_chunks(
        self, X: Any, y: Tensor, clip: float, measured: Tensor | None, given_away: bool
    ) -> Tensor:
        total = self._empty(given_away)
        parts = self._parts(total)
        places = None if measured is None else self._places(measured)
        for found, asked in self._chunks(X, y):
            rows = [part.flatten(1) for part in found]
            seen = (
                rows
                if places is None
                else [row[:, place] for row, place in zip(rows, places, strict=True)]
            )
            norms = np.zeros(len(rows[0]))
            for row in seen:
                norms += squared_lengths(row)
            weights = _weights(norms, clip)[:asked]
            for part, row in zip(parts, rows, strict=True):
                part.view(-1).add_(_weighted(row[:asked], weights))
        return total

    def _empty(self, given_away: bool) -> Tensor:
        """Zeros for a sum. What is not given away is the same memory every time: new memory of many
        megabytes costs more than to fill it."""
        if given_away:
            return torch.zeros(self.dimension)
        if self._sum is None:
            self._sum = torch.zeros(self.dimension)
        return self._sum.zero_()

    def _places(self, chosen: Tensor) -> list[Tensor]:
        """The chosen coordinates, parameter by parameter."""
        found = []
        for start, size in zip(self._starts, self._sizes, strict=False):
            inside = (chosen >= start) & (chosen < start + size)
            found.append(chosen[inside] - start)
        return found

    def _pieces(self, X: Any, y: Tensor) -> Iterator[tuple[Any, Tensor]]:
        assert self._capture is not None
        most = max(1, _EXPLICIT // max(1, self._capture.explicit_numbers))
        for start in range(0, count(X), most):
            rows = slice(start, start + most)
            yield (X, y) if most >= count(X) else (at(X, rows), y[rows])

    def _captured(self, X: Any, y: Tensor) -> Any:
        assert self._capture is not None
        if self.stochastic:
            with _seeded(self._coins()):
                return self._capture.run(self._module, X, lambda out: self._total(out, y))
        return self._capture.run(self._module, X, lambda out: self._total(out, y))

    def _plain(self, X: Any, y: Tensor) -> Tensor:
        with _seeded(self._coins()):
            loss = self._total(call(self._module, X), y)
        found = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        pairs = zip(found, self._sizes, strict=True)
        return torch.cat(
            [torch.zeros(size) if part is None else part.reshape(-1) for part, size in pairs]
        )

    # Losses.

    def _one_loss(self, output: Tensor, y: Tensor) -> Tensor:
        return self._loss(output[None], y[None]).sum()

    def _reduced(self, outputs: Tensor, y: Tensor) -> str:
        if self._reduction is None:
            found = reduction_of(self._loss, outputs, y)
            if len(y) < 2:
                return found
            self._reduction = found
        return self._reduction

    def _total(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The sum of the records' losses, each computed alone: a loss that looks at the batch on
        some records only cannot couple them."""
        self._reduced(outputs, y)
        if len(y) == 1:
            return self._one_loss(outputs[0], y[0])
        if self.cross_entropy is not None and outputs.ndim == 2 and y.ndim == 1:
            return functional.cross_entropy(outputs, y, reduction="sum", **self.cross_entropy)
        total: Tensor = torch.func.vmap(self._one_loss)(outputs, y).sum()
        return total

    # Parameters.

    def _parts(self, vector: Tensor) -> list[Tensor]:
        split = torch.split(vector, self._sizes)
        return [part.view(shape) for part, shape in zip(split, self._shapes, strict=True)]

    def _offsets(self) -> dict[int, int]:
        starts = zip(self._parameters, self._starts, strict=False)
        return {id(parameter): start for parameter, start in starts}

    def _checked(self, vector: Tensor | NDArray[np.float32]) -> Tensor:
        tensor = torch.as_tensor(vector)
        if tensor.shape != (self.dimension,) or tensor.dtype != torch.float32:
            raise DataError(
                f"`parameters` must be {self.dimension} numbers of float32, found "
                f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
            )
        return tensor

    def _load(self, parameters: Parameters) -> None:
        if parameters is self.memory:
            return
        flat = self.flatten(parameters) if isinstance(parameters, Mapping) else parameters
        with torch.no_grad():
            self._vector.copy_(self._checked(flat))

    def _coins(self) -> int:
        """The seed of this batch's coins: a function of the seed and the parameters."""
        if not self.stochastic:
            return self._seed
        digest = hashlib.blake2b(self._vector.numpy().tobytes(), digest_size=8)
        digest.update(self._seed.to_bytes(16, "little", signed=True))
        return int.from_bytes(digest.digest()[:7], "little")


def _cross_entropy(loss: Any) -> dict[str, Any] | None:
    """The settings of torch's own cross-entropy without weights, of which it is known that it adds
    up records, which is faster than asking for each; `None` for any other loss."""
    if loss is functional.cross_entropy:
        return {}
    if type(loss) is not nn.CrossEntropyLoss or loss.weight is not None:
        return None
    return {"label_smoothing": loss.label_smoothing, "ignore_index": loss.ignore_index}


def _weighted(rows: Tensor, weights: NDArray[np.float32]) -> Tensor:
    """The weighted sum of rows; those of weight 0 may hold anything."""
    if not weights.all():
        rows = torch.where(torch.from_numpy(weights > 0)[:, None], rows, 0.0)
    return torch.from_numpy(weights) @ rows


def _weights(squared_norms: NDArray[np.float64], clip: float | None) -> NDArray[np.float32]:
    """What clips gradients of these squared norms; 0 where a norm is not finite, or so large that
    `float32` no longer holds the weight to its last bits."""
    if clip is None:
        return np.ones(len(squared_norms), np.float32)
    return native.clip_weights(squared_norms, clip)


def _copy(module: nn.Module) -> nn.Module:
    """A deep copy, without operations that change their input in place."""
    copied = copy.deepcopy(module)
    for layer in copied.modules():
        if getattr(layer, "inplace", False) is True:
            layer.inplace = False
    return copied


def _draws(module: nn.Module) -> bool:
    """Whether a layer in training mode draws coins."""
    return any(
        layer.training
        and (
            (isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0)
            or isinstance(layer, nn.RReLU)
            or (isinstance(layer, nn.RNNBase) and layer.dropout > 0)
            or (isinstance(layer, nn.MultiheadAttention) and layer.dropout > 0)
        )
        for layer in module.modules()
    )


def _draws_by_value(module: nn.Module) -> bool:
    """Whether how many coins a layer draws depends on the numbers that come in: then those of a
    record move the coins of all records behind it, whole batch or not."""
    return any(layer.training and isinstance(layer, nn.RReLU) for layer in module.modules())


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Coins from this seed; afterwards the generator stands where it stood."""
    generator = torch.default_generator
    state = generator.get_state()
    generator.manual_seed(seed & (2**63 - 1))
    try:
        yield
    finally:
        generator.set_state(state)
