"""Curves of a run with matplotlib, which is imported when something is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["columns"]

_WORDS = {
    "round": "rounds",
    "paper_bits": "bits sent, as the paper counts them",
    "uplink_bytes": "bytes sent",
    "downlink_bytes": "bytes received",
    "loss": "training loss",
    "grad_norm_sq": "squared gradient norm",
    "utility": "mean squared gradient norm",
    "test_accuracy": "test accuracy",
    "test_loss": "test loss",
}


def columns(
    rounds: Mapping[str, NDArray[Any]], names: Sequence[str], x: str, ax: Axes | None
) -> Axes:
    """Draws columns against another one, into `ax` or a new figure."""
    for name in (*names, x):
        if name not in rounds:
            raise KeyError(f"a run has no column {name!r}; there are {', '.join(rounds)}")
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for name in names:
        ax.plot(rounds[x], rounds[name], label=_WORDS.get(name, name))
    ax.set_xlabel(_WORDS.get(x, x))
    if len(names) == 1:
        ax.set_ylabel(_WORDS.get(names[0], names[0]))
    else:
        ax.legend()
    ax.grid(alpha=0.3)
    return ax
