"""Private training as scikit-learn estimators.

>>> from sklearn.datasets import make_classification
>>> from soteriafl.sklearn import PrivateClassifier
>>> X, y = make_classification(8000, 6, n_informative=4, class_sep=2.0, random_state=0)
>>> classifier = PrivateClassifier(epsilon=2, feature_range=(-4, 4), random_state=0).fit(X, y)
>>> classifier.score(X, y) > 0.8, classifier.epsilon_ <= 2
(True, True)

What is claimed holds for the messages of simulated clients that *have* these records. Whatever
looks at the records before this estimator does ends the claim: a scaler that is fitted to them, a
selection of features, a choice of settings by score. Scale by what is known without them
(`feature_range`, :class:`PublicScaler`). Steps of a `Pipeline` that look at the records are warned
about where they can be seen, and nothing is claimed then.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from types import FrameType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
    from sklearn.pipeline import Pipeline
    from sklearn.utils import check_random_state, get_tags
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as _error:
    raise ImportError(
        "soteriafl.sklearn needs scikit-learn: pip install soteriafl[sklearn]"
    ) from _error

from .errors import ConfigError, DataDependentWarning, RunWarning
from .results import Privacy, Run
from .simulation import simulate

__all__ = ["PrivateClassifier", "PrivateRegressor", "PublicScaler", "data_dependent_steps"]

#: Steps that are fitted, but to the number of features or to a seed alone.
_PUBLIC_STEPS = {
    "GaussianRandomProjection",
    "PolynomialCountSketch",
    "PolynomialFeatures",
    "PublicScaler",
    "RBFSampler",
    "SkewedChi2Sampler",
    "SparseRandomProjection",
}


class PublicScaler(TransformerMixin, BaseEstimator):
    """Scales features by public constants: ``(X - center) * factor``. It learns nothing.

    Parameters
    ----------
    center, factor
        A number for all features, or one for each. They must be known without the records.

    Examples
    --------
    >>> from soteriafl.sklearn import PublicScaler
    >>> ages_and_shares = PublicScaler.from_ranges([0, 0], [100, 1])
    >>> ages_and_shares.fit_transform([[25, 0.5], [100, 1.0]]).tolist()
    [[-0.5, 0.0], [1.0, 1.0]]
    """

    def __init__(self, center: ArrayLike = 0.0, factor: ArrayLike = 1.0) -> None:
        self.center = center
        self.factor = factor

    @classmethod
    def from_ranges(cls, low: ArrayLike, high: ArrayLike) -> Self:
        """Maps features from `low` to `high` to [-1, 1]."""
        lowest, highest = np.asarray(low, np.float64), np.asarray(high, np.float64)
        if not (
            np.isfinite(lowest).all() and np.isfinite(highest).all() and (lowest < highest).all()
        ):
            raise ConfigError("every feature's range must be finite, and its end above its start")
        return cls(center=(lowest + highest) / 2, factor=2 / (highest - lowest))

    def fit(self, X: Any, y: Any = None) -> Self:
        """Looks at the number of features alone."""
        validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32])
        self._constants()
        return self

    def transform(self, X: Any) -> Any:
        """The scaled features. Sparse ones can only be multiplied."""
        check_is_fitted(self, "n_features_in_")
        X = validate_data(
            self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False, copy=True
        )
        center, factor = self._constants()
        if hasattr(X, "tocsr"):
            if np.any(center):
                raise ConfigError("sparse features have no room for a center other than 0")
            return X.multiply(np.broadcast_to(factor, (1, X.shape[1]))).tocsr()
        return (X - center.astype(X.dtype)) * factor.astype(X.dtype)

    def _constants(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        center, factor = np.asarray(self.center, np.float64), np.asarray(self.factor, np.float64)
        for name, values in (("center", center), ("factor", factor)):
            if values.ndim > 1 or (values.ndim == 1 and len(values) != self.n_features_in_):
                raise ConfigError(
                    f"`{name}` must be a number or one for each of {self.n_features_in_} features"
                )
            if not np.isfinite(values).all():
                raise ConfigError(f"`{name}` must be finite")
        return center, factor

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class _Private(BaseEstimator):
    """What classifier and regressor have in common."""

    def _train(self, X: Any, y: Any, clients: ArrayLike | None, config: dict[str, Any]) -> None:
        steps = _steps_before(self)
        if steps:
            names = ", ".join(steps)
            warnings.warn(
                f"{names}: fitted to the records before the private training, which no accounting "
                "covers, so nothing is claimed; scale by public constants instead (feature_range, "
                "PublicScaler)",
                DataDependentWarning,
                stacklevel=3,
            )
        self.scaler_ = self._public_scaler(X)
        run = simulate(
            X if self.scaler_ is None else self.scaler_.transform(X),
            y,
            clients=self._clients(len(y)) if clients is None else clients,
            algorithm=self.algorithm,
            model=self.model,
            epsilon=self.epsilon,
            delta=self.delta,
            clip=self.clip,
            rounds=self.rounds,
            compressor=self.compressor,
            fraction=self.fraction,
            config=config,
            prepared_by_records=bool(steps),
            seed=self._seed(),
            threads=self.threads,
            progress=False,
        )
        self.run_: Run = run
        self.privacy_: Privacy = run.privacy
        self.epsilon_: float | None = self.privacy_.epsilon
        self.n_iter_: int = int(run.summary["rounds"])

    def _features(self, X: Any) -> Any:
        check_is_fitted(self, "run_")
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        return X if self.scaler_ is None else self.scaler_.transform(X)

    def _public_scaler(self, X: Any) -> PublicScaler | None:
        if self.feature_range is None:
            return None
        low, high = _pair("feature_range", self.feature_range)
        return PublicScaler.from_ranges(low, high).fit(X)

    def _clients(self, rows: int) -> int:
        if self.clients > rows:
            warnings.warn(
                f"{rows} records cannot be dealt to {self.clients} clients: each gets one",
                RunWarning,
                stacklevel=4,
            )
        return int(min(self.clients, rows))

    def _seed(self) -> int:
        if isinstance(self.random_state, (int, np.integer)):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = self.random_state is None
        return tags


class PrivateClassifier(ClassifierMixin, _Private):
    """A classifier whose training is private and federated: :func:`soteriafl.simulate` in
    scikit-learn's clothes.

    Parameters
    ----------
    epsilon, delta
        The privacy that each client is promised; `epsilon=None` adds no noise and claims nothing.
    clients
        How many clients the records are dealt to; `fit(X, y, clients=ids)` says who has which.
    feature_range
        Public lowest and highest values of features, numbers or one for each: mapped to [-1, 1].
        Give what is known without the records, not their minimum and maximum.
    algorithm, model, clip, rounds, compressor, fraction, config, threads
        As in :func:`soteriafl.simulate`.
    random_state
        The seed of the simulation, noise included: whoever knows it knows the noise.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_
        As everywhere in scikit-learn.
    privacy_ : soteriafl.Privacy
        What is claimed, in numbers and sentences.
    epsilon_ : float or None
        The proved epsilon; None where nothing may be claimed.
    scaler_ : PublicScaler or None
        What maps `feature_range` to [-1, 1].
    run_ : soteriafl.Run
        The whole run: rounds, traffic, report, files. Its model reads what `scaler_` gives.
    """

    def __init__(
        self,
        *,
        epsilon: float | None = 1.0,
        delta: float = 1e-5,
        clients: int = 10,
        feature_range: tuple[ArrayLike, ArrayLike] | None = None,
        algorithm: str = "auto",
        model: str = "auto",
        clip: float | Literal["auto"] = "auto",
        rounds: int | Literal["auto"] = "auto",
        compressor: str = "auto",
        fraction: float | Literal["auto"] = "auto",
        config: Mapping[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = None,
        threads: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.clients = clients
        self.feature_range = feature_range
        self.algorithm = algorithm
        self.model = model
        self.clip = clip
        self.rounds = rounds
        self.compressor = compressor
        self.fraction = fraction
        self.config = config
        self.random_state = random_state
        self.threads = threads

    def fit(self, X: Any, y: Any, clients: ArrayLike | None = None) -> Self:
        """Trains on clients' records; `clients` may say which client every row belongs to."""
        X, y = validate_data(
            self,
            X,
            y,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            accept_large_sparse=True,
        )
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise ValueError(
                "Classifier can't train when only one class is present: y has 1 class, "
                f"{self.classes_[0]!r}"
            )
        self._train(X, y, clients, dict(self.config or {}))
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of every row."""
        X = self._features(X)
        return np.asarray(self.run_.predict(X), dtype=self.classes_.dtype)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of every class, in the order of `classes_`."""
        X = self._features(X)
        found = self.run_.predict_proba(X)
        every = np.zeros((len(found), len(self.classes_)))
        every[:, np.searchsorted(self.classes_, self.run_.classes)] = found
        return every

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # With few records there is more noise than signal, as there must be.
        tags.classifier_tags.poor_score = True
        return tags


class PrivateRegressor(RegressorMixin, _Private):
    """A regressor whose training is private and federated: a linear model or a network of a number.

    >>> import numpy as np
    >>> from soteriafl.sklearn import PrivateRegressor
    >>> X = np.random.default_rng(0).uniform(-1, 1, (8000, 3))
    >>> y = 20 + 5 * X[:, 0] - 3 * X[:, 1]
    >>> regressor = PrivateRegressor(epsilon=2, target_range=(10, 30), random_state=0).fit(X, y)
    >>> regressor.score(X, y) > 0.5, regressor.epsilon_ <= 2
    (True, True)

    Parameters
    ----------
    target_range
        The public lowest and highest value of what is predicted; never the records' own minimum and
        maximum. Predictions lie within it, and targets beyond it count as its end.
    feature_range, epsilon, delta, clients, algorithm, model, clip, rounds, compressor, fraction, \
config, random_state, threads
        As of :class:`PrivateClassifier`; `model` is "linear" or "mlp".

    Attributes
    ----------
    n_features_in_, feature_names_in_, privacy_, epsilon_, scaler_, run_
        As of :class:`PrivateClassifier`.
    """

    def __init__(
        self,
        *,
        epsilon: float | None = 1.0,
        delta: float = 1e-5,
        clients: int = 10,
        target_range: tuple[float, float] = (-1.0, 1.0),
        feature_range: tuple[ArrayLike, ArrayLike] | None = None,
        algorithm: str = "auto",
        model: str = "auto",
        clip: float | Literal["auto"] = "auto",
        rounds: int | Literal["auto"] = "auto",
        compressor: str = "auto",
        fraction: float | Literal["auto"] = "auto",
        config: Mapping[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = None,
        threads: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.clients = clients
        self.target_range = target_range
        self.feature_range = feature_range
        self.algorithm = algorithm
        self.model = model
        self.clip = clip
        self.rounds = rounds
        self.compressor = compressor
        self.fraction = fraction
        self.config = config
        self.random_state = random_state
        self.threads = threads

    def fit(self, X: Any, y: Any, clients: ArrayLike | None = None) -> Self:
        """Trains on clients' records; `clients` may say which client every row belongs to."""
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], y_numeric=True
        )
        low, high = _pair("target_range", self.target_range)
        config = {"data.target_range": [float(low), float(high)], **(self.config or {})}
        self._train(X, np.asarray(y, np.float64), clients, config)
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The number of every row, within `target_range`."""
        X = self._features(X)
        return np.asarray(self.run_.predict(X), np.float64)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags


def _pair(name: str, value: Any) -> tuple[Any, Any]:
    try:
        low, high = value
    except (TypeError, ValueError):
        raise ConfigError(f"`{name}` must be a pair: lowest and highest value") from None
    return low, high


def data_dependent_steps(pipeline: Pipeline) -> list[str]:
    """The steps of a pipeline before its last one that learn from records.

    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import Normalizer, StandardScaler
    >>> from soteriafl.sklearn import PrivateClassifier, data_dependent_steps
    >>> data_dependent_steps(make_pipeline(StandardScaler(), Normalizer(), PrivateClassifier()))
    ['StandardScaler']
    """
    return [
        type(step).__name__
        for _, step in pipeline.steps[:-1]
        if step is not None and not isinstance(step, str) and not _is_public(step)
    ]


def _is_public(step: Any) -> bool:
    if isinstance(step, Pipeline):
        return all(_is_public(inner) or isinstance(inner, str) for _, inner in step.steps)
    if type(step).__name__ in _PUBLIC_STEPS:
        return True
    try:
        return not get_tags(step).requires_fit
    except Exception:
        # What does not say so may have looked.
        return False


def _steps_before(estimator: BaseEstimator) -> list[str]:
    """Data-dependent steps of the pipelines that are fitting this estimator as their last step.

    An estimator is not told that it stands in a pipeline, but the pipeline's `fit` is among its
    callers.
    """
    found: list[str] = []
    inner: Any = estimator
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Pipeline) and caller.steps[-1][1] is inner:
            found = data_dependent_steps(caller) + found
            inner = caller
        frame = frame.f_back
    return found
