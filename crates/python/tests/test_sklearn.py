"""The estimators: what scikit-learn asks of everybody, and what is ours."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.feature_selection import SelectKBest
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import soteriafl as sf
from soteriafl.sklearn import (
    PrivateClassifier,
    PrivateRegressor,
    PublicScaler,
    data_dependent_steps,
)

pytestmark = pytest.mark.filterwarnings("ignore::soteriafl.RunWarning")


def checks():
    for estimator in [PrivateClassifier(rounds=5), PrivateRegressor(rounds=5), PublicScaler()]:
        for checked, check in estimator_checks_generator(estimator):
            name = getattr(check, "func", check).__name__
            yield pytest.param(checked, check, id=f"{type(estimator).__name__}-{name}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "check"), list(checks()))
def test_scikit_learn_takes_them(estimator, check):
    check(estimator)


def records(rows=6000, classes=2):
    return make_classification(
        rows, 6, n_informative=4, n_classes=classes, class_sep=2.0, random_state=0
    )


def test_a_classifier_is_a_run():
    X, y = records()
    names = np.array(["healthy", "ill"])[y]
    classifier = PrivateClassifier(epsilon=2, clients=5, feature_range=(-4, 4), random_state=1)
    classifier.fit(X, names)
    assert classifier.score(X, names) > 0.8
    assert 1.9 < classifier.epsilon_ <= 2 and classifier.privacy_.reason is None
    assert "differentially private" in classifier.privacy_.statement
    assert classifier.classes_.tolist() == ["healthy", "ill"]
    chances = classifier.predict_proba(X)
    assert (classifier.classes_[chances.argmax(axis=1)] == classifier.predict(X)).all()
    run = sf.simulate(X / 4, names, clients=5, epsilon=2, seed=1, progress=False)
    assert run._native.model == classifier.run_._native.model


def test_clients_by_their_ids():
    X, y = records(900, 3)
    ids = np.arange(900) % 3
    classifier = PrivateClassifier(model="softmax", rounds=5).fit(X, y, clients=ids)
    assert classifier.run_.summary["samples_per_client"] == [300] * 3
    assert classifier.predict_proba(X).shape == (900, 3)


def test_one_range_for_each_feature():
    X, y = records(2000)
    low, high = np.full(6, -4.0), np.full(6, 4.0)
    same = {"rounds": 10, "random_state": 0}
    each = PrivateClassifier(feature_range=(low, high), **same).fit(X, y)
    one = PrivateClassifier(feature_range=(-4, 4), **same).fit(X, y)
    assert np.allclose(each.predict_proba(X), one.predict_proba(X), atol=1e-5)
    for bad in [(0, 0), (1, 0), (0, np.inf), 3]:
        with pytest.raises(sf.ConfigError, match="range"):
            PrivateClassifier(feature_range=bad).fit(X, y)


def test_the_order_of_classes_is_scikit_learns():
    X, y = records(2000, 3)
    # The library orders text that reads as numbers by value, numpy by letters.
    names = np.array(["9", "10", "100"])[y]
    classifier = PrivateClassifier(epsilon=None, model="softmax", rounds=60, random_state=0)
    classifier.fit(X, names)
    assert classifier.classes_.tolist() == ["10", "100", "9"]
    chances = classifier.predict_proba(X)
    assert (classifier.classes_[chances.argmax(axis=1)] == classifier.predict(X)).mean() > 0.99
    assert classifier.score(X, names) > 0.6


def test_steps_that_look_at_the_records_end_the_claim():
    X, y = records(2000)
    seen = make_pipeline(StandardScaler(), SelectKBest(k=3), PrivateClassifier(rounds=5))
    with pytest.warns(sf.DataDependentWarning, match="StandardScaler, SelectKBest"):
        seen.fit(X, y)
    assert seen[-1].epsilon_ is None and seen[-1].privacy_.reason == "data-dependent scaling"
    nested = make_pipeline(
        StandardScaler(), make_pipeline(Normalizer(), PrivateClassifier(rounds=5))
    )
    with pytest.warns(sf.DataDependentWarning, match="StandardScaler"):
        nested.fit(X, y)
    public = make_pipeline(
        PublicScaler(0, 0.1),
        Normalizer(),
        FunctionTransformer(np.tanh),
        PrivateClassifier(rounds=5),
    )
    public.fit(X, y)
    assert data_dependent_steps(public) == [] and public[-1].epsilon_ is not None
    # A step fitted elsewhere is not before this one.
    StandardScaler().fit(X)
    assert PrivateClassifier(rounds=5).fit(X, y).epsilon_ is not None


def test_scores_and_copies():
    X, y = records(3000)
    classifier = PrivateClassifier(feature_range=(-4, 4), random_state=0)
    assert (cross_val_score(classifier, X, y, cv=3) > 0.7).all()
    assert clone(classifier).get_params() == classifier.get_params()


def test_public_scaler():
    scaler = PublicScaler.from_ranges([0, -1], [100, 1])
    X = np.array([[50.0, 0.0], [100.0, 1.0]])
    assert scaler.fit_transform(X).tolist() == [[0, 0], [1, 1]]
    with pytest.raises(sf.ConfigError, match="one for each of 3 features"):
        scaler.fit(np.zeros((2, 3)))


def test_a_regressor_is_a_run():
    rng = np.random.default_rng(3)
    X = rng.uniform(0, 10, (6000, 3))
    y = 15 + 2 * (X[:, 0] - 5) - (X[:, 1] - 5) + rng.normal(0, 0.5, 6000)
    regressor = PrivateRegressor(
        epsilon=2, clients=5, feature_range=(0, 10), target_range=(0, 30), random_state=0
    )
    regressor.fit(X, y)
    predicted = regressor.predict(X)
    assert regressor.score(X, y) > 0.5 and 1.9 < regressor.epsilon_ <= 2
    assert predicted.min() >= 0 and predicted.max() <= 30
    # The twin: the file's numbers by hand, in the unit of the target.
    tensors = {name: tensor.astype(float) for name, tensor in regressor.run_.model.items()}
    assert sorted(tensors) == ["weight", "whitening"]
    x, two = X / 5 - 1, np.sqrt(2)
    roots = 2 * np.sqrt((1 + x) / 2) - two - (2 - two) * x
    records = np.hstack([x, roots, np.full((len(x), 1), 0.5)])
    records /= np.linalg.norm(records, axis=1, keepdims=True)
    records = records @ tensors["whitening"]
    records *= np.minimum(1, 1.5 / np.linalg.norm(records, axis=1, keepdims=True))
    place = records @ tensors["weight"][0]
    assert np.allclose(predicted, 15 + 15 * np.clip(place, -1, 1), atol=1e-4)
    with pytest.raises(sf.DataError, match="no probabilities"):
        regressor.run_.predict_proba(X)
    for bad in [(3, 3), (5, 1), 7]:
        with pytest.raises(sf.ConfigError, match="range"):
            PrivateRegressor(target_range=bad).fit(X, y)


def test_numbers_from_a_table():
    rng = np.random.default_rng(4)
    X = rng.uniform(-1, 1, (2000, 2))
    y = np.round(10 * X[:, 0])
    settings = {"data.target_range": [-10, 10], "data.holdout": 0.25}
    run = sf.simulate(X, y, config=settings, progress=False)
    assert run.summary["final"]["r2"] > 0.3 and run.test_accuracy is None
    assert run.predict(X).dtype == float
    with pytest.raises(sf.DataError, match=r"numbers up to .* to predict, found text"):
        sf.simulate(X, y.astype(str), config=settings, progress=False)
