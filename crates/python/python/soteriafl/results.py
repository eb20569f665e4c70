"""What a run leaves: :class:`Run`, and :func:`load` for one that is in a directory."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import _records, plotting
from . import _soteriafl as native
from .errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame as _DataFrame

__all__ = ["Privacy", "Run", "Traffic", "load"]


@dataclass(frozen=True)
class Privacy:
    """What is claimed for the messages of a run. `epsilon` is None where nothing may be claimed."""

    epsilon: float | None
    delta: float
    adjacency: str
    #: The largest noise over clients, per coordinate of the estimate.
    sigma: float
    #: Why there is no claim; None where there is one.
    reason: str | None
    #: The claim in sentences, with what it presumes.
    statement: str
    #: Whether random-k amplification made epsilon smaller, and what it is without.
    amplified: bool
    epsilon_unamplified: float | None
    #: How noise was drawn: "float (simulated)", "secure" or "none".
    noise: str

    def __str__(self) -> str:
        return self.statement


@dataclass(frozen=True)
class Traffic:
    """What all clients sent and received. `paper_bits` counts 64 bits for every value sent."""

    uplink_bytes: int
    downlink_bytes: int
    paper_bits: int


class Run:
    """A finished run: model, claim, rounds, traffic, and the files that `soteria train` writes.

    :func:`soteriafl.simulate` and :func:`load` make runs.
    """

    def __init__(self, finished: native.Finished, classes: NDArray[Any] | None = None) -> None:
        self._native = finished
        self._summary: dict[str, Any] = json.loads(finished.summary)
        self._classes = classes

    def __reduce__(self) -> tuple[Any, ...]:
        run = self._native
        files = (run.config, run.rounds, run.summary, run.model)
        return _again, (*files, run.warnings, run.classes, self._classes)

    @property
    def model(self) -> dict[str, NDArray[np.float32]]:
        """The tensors of the model by name, as in `model.safetensors`: `weight` is [out, in]."""
        tensors = self._native.tensors()
        return {name: values.reshape(shape) for name, shape, values in tensors}

    @property
    def privacy(self) -> Privacy:
        """What is claimed, or why nothing is."""
        found = self._summary["privacy"]
        proved = found["claim"] == "proved" and found["epsilon"] is not None
        return Privacy(
            epsilon=found["epsilon"] if proved else None,
            delta=found["delta"],
            adjacency=found["adjacency"],
            sigma=found["sigma"],
            reason=None if proved else found["claim"],
            statement=self._native.statement(),
            amplified=bool(found["amplified"]),
            epsilon_unamplified=found["epsilon_unamplified"],
            noise=found["noise"],
        )

    @property
    def rounds(self) -> Mapping[str, NDArray[Any]]:
        """The columns of `rounds.csv`, one row for each evaluated round; nan where nothing is."""
        return self._native.columns()

    @property
    def traffic(self) -> Traffic:
        """What all clients sent and received."""
        found = self._summary["traffic"]
        return Traffic(found["uplink_bytes"], found["downlink_bytes"], found["paper_bits"])

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must know before anything else, in sentences."""
        said = [*self._native.warnings, *self._summary["warnings"]]
        return tuple(dict.fromkeys(said))

    @property
    def summary(self) -> dict[str, Any]:
        """What `summary.json` says, a copy."""
        copy: dict[str, Any] = json.loads(self._native.summary)
        return copy

    @property
    def config(self) -> str:
        """The text of `config.toml`: every choice that was made."""
        return self._native.config

    @property
    def test_accuracy(self) -> float | None:
        """The share of the test records that the final model classifies rightly, if measured."""
        found: float | None = self._summary["final"].get("test_accuracy")
        return found

    @property
    def interrupted(self) -> bool:
        """Whether the run was stopped before its last round."""
        return self._summary.get("interrupted") is True

    @property
    def classes(self) -> NDArray[Any]:
        """What the model can predict, in the order of :meth:`predict_proba`."""
        if self._classes is None:
            names = self._summary.get("data", {}).get("classes")
            if names is None:
                raise DataError("this run does not say what its classes are called")
            self._classes = _numbers_or_text(names)
        return self._classes

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of every row, by its name; of a regression, the number.

        `X` is what :func:`soteriafl.simulate` takes, unscaled. Columns with names must be those of
        training, in their order.
        """
        if self._native.regression:
            return self._native.numbers(_records.rows("X", X))
        predicted = self._native.predict(_records.rows("X", X))
        return np.asarray(self.classes[predicted])

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of every class for every row."""
        if self._native.regression:
            raise DataError("this model predicts a number, which has no probabilities")
        return self._native.probabilities(_records.rows("X", X))

    def to_pandas(self) -> _DataFrame:
        """The rounds as a data frame."""
        import pandas

        return pandas.DataFrame(dict(self.rounds))

    def plot(self, *columns: str, x: str = "round", ax: Axes | None = None) -> Axes:
        """Draws columns of :attr:`rounds` with matplotlib: the loss unless others are named.

        Parameters
        ----------
        columns
            Names of columns, "test_accuracy" for instance.
        x
            The column to draw them against: "round", "uplink_bytes", "epsilon".
        ax
            Where to draw; a new figure unless given.
        """
        return plotting.columns(self.rounds, columns or ("loss",), x, ax)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes the five files of `soteria train` into a directory."""
        self._native.write(os.fspath(path), overwrite)

    def report(self) -> str:
        """The page `report.html`."""
        return self._native.html()

    def svg(self) -> str:
        """The curves as `soteria report --svg` draws them."""
        return self._native.svg()

    def __repr__(self) -> str:
        facts = "; ".join(f"{name} {text}" for name, text in self._facts())
        return f"<soteriafl.Run: {facts}>"

    def _facts(self) -> list[tuple[str, str]]:
        summary, privacy = self._summary, self.privacy
        claim = (
            f"{privacy.epsilon:.4g} at delta {privacy.delta:g}, {privacy.adjacency} (proved)"
            if privacy.epsilon is not None
            else f"no claim: {privacy.reason}"
        )
        facts = [
            ("algorithm", str(summary["algorithm"])),
            ("records", f"{sum(summary['samples_per_client']):,} of {summary['clients']} clients"),
            ("parameters", f"{summary['dimension']:,}"),
            ("rounds", str(summary["rounds"]) + (" (interrupted)" if self.interrupted else "")),
            ("epsilon", claim),
        ]
        if self.test_accuracy is not None:
            facts.append(("test accuracy", f"{self.test_accuracy:.4f}"))
        facts.append(("sent up", f"{self.traffic.uplink_bytes:,} bytes"))
        return facts

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
            for name, text in self._facts()
        )
        notes = "".join(f"<li>{html.escape(warning)}</li>" for warning in self.warnings)
        notes = f"<ul>{notes}</ul>" if notes else ""
        return f"<table>{rows}</table>{notes}{self.svg()}"


def load(path: str | os.PathLike[str]) -> Run:
    """Reads a run's directory, written by `soteria train`, `soteria serve` or :meth:`Run.save`.

    >>> import soteriafl as sf, tempfile, os
    >>> run = sf.simulate(config={"data.source": "synthetic:2000x4"}, rounds=3, progress=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run.save(os.path.join(folder, "run"))
    ...     again = sf.load(os.path.join(folder, "run"))
    >>> again.privacy == run.privacy, again.traffic == run.traffic
    (True, True)
    """
    return Run(native.Finished.read(os.fspath(path)))


def _again(
    config: str,
    rounds: str,
    summary: str,
    model: bytes,
    warnings: list[str],
    labels: list[int],
    classes: NDArray[Any] | None,
) -> Run:
    """A run that was pickled."""
    return Run(native.Finished.of(config, rounds, summary, model, warnings, labels), classes)


def _numbers_or_text(names: list[str]) -> NDArray[Any]:
    """Class names as whole numbers where all of them are, else as text."""
    try:
        return np.array([int(name) for name in names])
    except ValueError:
        return np.array(names)
