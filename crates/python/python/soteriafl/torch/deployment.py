"""Networked runs of a PyTorch module: what describes it, and the records of a client behind it.

A server does not have the module. It knows names and shapes of the parameters that are trained, a
digest of layers, modes and frozen numbers, and where to start; a client compares them with its own
module before it takes part, and the parameters come from the server. :func:`describe` writes them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import _soteriafl as native
from .._arguments import whole
from ..errors import ConfigError
from ..simulation import _given, _toml
from .architecture import architecture_of, bytes_of
from .check import Loss, check
from .per_record import Gradients, PerRecord
from .records import Problem, check_labels, tensors
from .simulate import _way, settle

__all__ = ["describe", "holding"]


def describe(
    module: nn.Module,
    directory: str | os.PathLike[str],
    *,
    clients: int,
    records: int,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Writes ``run.toml`` and ``start.txt`` into `directory`, for `soteria serve --config`.

    `records` is how many the smallest client has: noise is computed for its own number by every
    client. `config` holds any other key of the configuration (`docs/configuration.md`), such as
    ``{"privacy.epsilon": 4, "algorithm.rounds": 200}``; what it leaves out is chosen as for a
    network of SoteriaFL's own. The parameters that `module` has now are where the run starts, and
    public.

    >>> import tempfile, torch
    >>> where = describe(torch.nn.Linear(3, 2), tempfile.mkdtemp(), clients=10, records=600)
    >>> [line for line in where.read_text().splitlines() if line.startswith("parameters")]
    ['parameters = ["weight[2,3]", "bias[2]"]']
    """
    check(module)
    parameters, architecture = architecture_of(module)
    given = _given(config)[1] if config is None or isinstance(config, Mapping) else None
    if given is None:
        raise ConfigError(f"`config` must be a mapping of keys, found {config!r}")
    where = Path(directory)
    where.mkdir(parents=True, exist_ok=True)
    start = where / "start.txt"
    own = {
        "model.kind": "elsewhere",
        "model.init": f"file:{start.resolve()}",
        "model.parameters": parameters,
        "model.architecture": architecture,
        "data.source": "clients",
        "data.clients": whole("clients", clients, error=ConfigError),
        "deployment.records": whole("records", records, error=ConfigError),
    }
    for key in own:
        if key in given:
            raise ConfigError(f"`config`: {key} is what this function writes")
    sections: dict[str, list[str]] = {}
    for key, value in {**own, **given}.items():
        section, _, name = key.partition(".")
        if not name:
            raise ConfigError(f"`config`: {key} is no key: they are called section.name")
        sections.setdefault(section, []).append(f"{name} = {_toml(key, value)}")
    trained = [p.detach().reshape(-1) for p in module.parameters() if p.requires_grad]
    numbers = torch.cat(trained).double().tolist()
    start.write_text("".join(f"{number!r}\n" for number in numbers))
    text = "\n".join(
        f"[{section}]\n" + "".join(f"{line}\n" for line in lines)
        for section, lines in sections.items()
    )
    run = where / "run.toml"
    run.write_text(text)
    return run


def holding(
    module: nn.Module,
    loss: Loss,
    dataset: Any,
    *,
    gradients: Gradients = "auto",
    chunk: int = 32,
) -> native.Holding:
    """A client's records behind a module, for the native part."""
    X, y = tensors("dataset", dataset)
    check(module, loss, X, y)
    parameters, architecture = architecture_of(module)
    parts = (*X, y) if isinstance(X, tuple) else (X, y)
    kind = "; ".join(f"{part.dtype} {tuple(part.shape[1:])}" for part in parts)

    def maker(estimator: str, secure: bool) -> Problem:
        model = PerRecord(module, loss, _way(gradients, secure), chunk, own_coins=False)
        settle(model, [len(y)], estimator, noisy=True)
        return Problem(model, [(X, y)])

    # What is wrong with `gradients` and `chunk` is said before a server is asked.
    model = PerRecord(module, loss, gradients, chunk, own_coins=False)
    check_labels(model, {"dataset": (X, y)})
    return native.Holding.elsewhere(
        maker,
        parameters,
        architecture,
        f"torch: {kind}",
        [bytes_of(part) for part in parts],
    )
