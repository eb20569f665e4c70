"""Private runs of torch modules: claims, bits, failures, bad input."""

import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import soteriafl as sf  # noqa: E402
import soteriafl.torch as st  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def records(rows=240, seed=1):
    X = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))
    return X, (X[:, 0] + 0.5 * X[:, 1] > 0).long()


def clients(count=3):
    X, y = records()
    return [(X[i::count], y[i::count]) for i in range(count)]


def network():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def run(module=None, **settings):
    asked = {
        "loss": F.cross_entropy,
        "clients": clients(),
        "test": records(200, 2),
        "epsilon": 3.0,
        "clip": 1.0,
        "rounds": 12,
        "step_size": 3.0,
        "seed": 7,
    }
    return st.simulate(network() if module is None else module, **(asked | settings))


def bits(module):
    return [p.detach().numpy().tobytes() for p in module.parameters()]


SETTINGS = {
    "gd": {},
    "sgd": {"batch": 20},
    "svrg": {"estimator": "svrg", "batch": 20, "difference_clip": 0.5},
    "saga": {"estimator": "saga", "batch": 20, "difference_clip": 0.5},
    "selected": {"batch": 20, "fraction": 0.3, "clip_scope": "selected"},
    "rand-k": {"batch": 20, "fraction": 0.3},
    "qsgd": {"batch": 20, "compressor": "qsgd"},
    "natural": {"batch": 20, "compressor": "natural", "shift": False, "participation": 0.7},
    "secure": {"batch": 20, "noise": "secure", "fraction": 0.5},
    "secure svrg": {
        "estimator": "svrg",
        "batch": 20,
        "difference_clip": 0.5,
        "noise": "secure",
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_runs_are_proved_and_repeat_themselves(name):
    module = network()
    before = bits(module)
    one, two = run(module, **SETTINGS[name]), run(module, **SETTINGS[name])
    assert bits(module) == before and bits(one.module) != before
    assert bits(one.module) == bits(two.module)
    for column in one.rounds:
        assert np.array_equal(one.rounds[column], two.rounds[column], equal_nan=True)
    assert one.privacy.epsilon <= 3 and one.privacy.reason is None
    assert "3" in one.privacy.statement and "replace-one" in one.privacy.statement
    secure = "secure" in name
    assert one.gradients == ("exact" if secure else "hooks")
    assert ("up to rounding" in one.privacy.statement) != secure
    assert one.rounds["uplink_bytes"][-1] == one.traffic.uplink_bytes > 0
    assert one.rounds["round"][-1] == 12
    other = run(module, **SETTINGS[name], **{"step_size": 3.0}, seed=8)
    assert bits(other.module) != bits(one.module)


def test_ways_agree():
    """Without noise, hooks, vmap and one record at a time end close to one another."""
    for settings in ({}, {"batch": 20}, SETTINGS["svrg"], SETTINGS["saga"]):
        ends = [
            run(**settings, epsilon=None, gradients=way, chunk=7).module
            for way in ("hooks", "vmap", "exact")
        ]
        for other in ends[1:]:
            for left, right in zip(ends[0].parameters(), other.parameters(), strict=True):
                assert torch.allclose(left, right, atol=2e-4)


def test_it_learns():
    learned = run(clients=clients(), rounds=40, epsilon=8.0)
    assert learned.rounds["test_accuracy"][-1] > 0.9
    X, y = records(200, 2)
    learned.module.eval().requires_grad_(False)
    share = (learned.module(X).argmax(1) == y).float().mean()
    assert float(share) == pytest.approx(learned.rounds["test_accuracy"][-1], abs=1e-6)
    loss = np.mean([float(F.cross_entropy(learned.module(a), b)) for a, b in clients()])
    assert loss == pytest.approx(learned.rounds["loss"][-1], rel=1e-5)


def test_nothing_is_claimed_where_nothing_can_be():
    silent = run(epsilon=None, clip=None)
    assert silent.privacy.epsilon is None and silent.privacy.reason == "no noise"
    prepared = run(prepared_by_records=True)
    assert prepared.privacy.epsilon is None
    assert "No privacy claim" in prepared.privacy.statement


class Fails(nn.Module):
    """Raises at the call with this number."""

    def __init__(self, at):
        super().__init__()
        torch.manual_seed(6)
        self.layer, self.left, self.calls = nn.Linear(4, 2), at, []

    def __deepcopy__(self, memo):
        copied = Fails(self.left)
        copied.layer.load_state_dict(self.layer.state_dict())
        copied.calls = self.calls
        return copied

    def forward(self, X):
        self.calls.append(len(X))
        if len(self.calls) == self.left:
            raise ZeroDivisionError("the user's mistake")
        return self.layer(X)


@pytest.mark.parametrize("settings", [{}, SETTINGS["svrg"], SETTINGS["secure"]])
def test_an_exception_ends_the_run_before_a_message(settings):
    seen = []
    whole = Fails(-1)
    run(whole, **settings, progress=lambda *now: seen.append(now))
    after_first_round = 40 if "noise" not in settings else 150
    assert len(whole.calls) > after_first_round
    told = []
    with pytest.raises(ZeroDivisionError, match="the user's mistake") as raised:
        run(
            Fails(len(whole.calls) // 2),
            **settings,
            progress=lambda *now: told.append(now),
        )
    assert told == seen[: len(told)] and len(told) < len(seen)
    note = raised.value.__notes__[0]
    assert "nothing was sent" in note or "metrics" in note


def test_progress_may_stop_and_may_fail():
    rounds = []

    def stop(round, sent, metrics):
        rounds.append(round)
        return round < 4

    ended = run(progress=stop, evaluate_every=1)
    assert rounds == [0, 1, 2, 3, 4] and ended.rounds["round"][-1] == 4

    def interrupted(round, sent, metrics):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(progress=interrupted)


def test_dropout_and_norms():
    torch.manual_seed(2)
    module = nn.Sequential(
        nn.Linear(4, 8), nn.LayerNorm(8), nn.Dropout(0.2), nn.ReLU(inplace=True), nn.Linear(8, 2)
    )
    one, two = run(module, batch=20), run(module, batch=20)
    assert one.gradients == "exact" and bits(one.module) == bits(two.module)
    assert run(module, **SETTINGS["svrg"], rounds=3).gradients == "exact"
    # Without noise nothing is claimed, and all records always stand at the same places.
    free = {"epsilon": None, "clip": None, "rounds": 3}
    assert run(module, batch=20, **free).gradients == "vmap"
    assert run(module, rounds=3).gradients == "vmap"
    for way, settings in (
        ("vmap", SETTINGS["sgd"]),
        ("vmap", SETTINGS["svrg"]),
        ("vmap", SETTINGS["svrg"] | free | {"difference_clip": None}),
    ):
        with pytest.raises(sf.ConfigError, match="dropout"):
            run(module, **settings, gradients=way)


@pytest.mark.parametrize("preset", ["soteriafl-sag", "porter", "ldp-srm", "ldp-spider", "diff2"])
def test_every_preset_that_draws_batches_gives_records_their_own_coins(preset):
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2))
    one = preset == "diff2"
    config = {"algorithm.preset": preset, "algorithm.batch": 20}
    asked = {"config": config, "rounds": 2}
    if one:
        asked["clients"] = clients(1)
    assert run(module, **asked).gradients == "exact"
    with pytest.raises(sf.ConfigError, match="dropout"):
        run(module, **asked, gradients="hooks")


def test_tables_that_do_not_fit_are_refused(monkeypatch):
    # `st.simulate` is the function; this is its module.
    monkeypatch.setattr(sys.modules["soteriafl.torch.simulate"], "_TABLES", 1000)
    for settings in (
        SETTINGS["saga"],
        {"config": {"algorithm.preset": "soteriafl-sag", "algorithm.batch": 20}},
    ):
        with pytest.raises(sf.ConfigError, match="keeps 58 numbers for each of 240 records"):
            run(**settings, rounds=2)
    assert run(batch=20, rounds=2).privacy.epsilon


def test_data_sets_of_torch():
    X, y = records(30)
    pairs = [(X[j], int(y[j])) for j in range(30)]
    same = [
        run(clients=[data], rounds=2)
        for data in ((X, y), torch.utils.data.TensorDataset(X, y), pairs)
    ]
    assert bits(same[0].module) == bits(same[1].module) == bits(same[2].module)
    arrays = run(clients=[(X.double().numpy(), y.numpy())], rounds=2)
    assert bits(arrays.module) == bits(same[0].module)


def test_regression_has_no_accuracy():
    X, _ = records()
    y = X.sum(1, keepdim=True)
    ended = run(nn.Linear(4, 1), loss=F.mse_loss, clients=[(X, y)], test=(X, y), step_size=0.5)
    assert np.isnan(ended.rounds["test_accuracy"]).all()
    assert ended.rounds["loss"][-1] < 0.5 * ended.rounds["loss"][0]


X, Y = records(20)
BAD = X.clone()
BAD[3, 1] = float("nan")
LATER = Y.clone()
LATER[-1] = 7


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"clients": []}, sf.DataError, "`clients` is empty"),
        ({"clients": X}, sf.DataError, "`clients` must be a list"),
        ({"clients": [X]}, sf.DataError, r"clients\[0\]"),
        ({"clients": [(X, Y[:7])]}, sf.DataError, "one row of each per record"),
        ({"clients": [(X, Y), (BAD, Y)]}, sf.DataError, r"clients\[1\]: X.*not finite"),
        ({"clients": [(X.half(), Y)]}, sf.DataError, "float16.*float"),
        ({"clients": [(X, Y), (X[:, :3], Y)]}, sf.DataError, r"clients\[1\].*shape"),
        ({"clients": [(X.numpy().astype(object), Y)]}, sf.DataError, "objects"),
        ({"clients": [(X[:0], Y[:0])]}, sf.DataError, "no records"),
        ({"test": (X[:, :2], Y)}, sf.DataError, "`test`"),
        ({"clip": None}, sf.ConfigError, "clip"),
        ({"clip": -1.0}, sf.ConfigError, "`clip`"),
        ({"epsilon": 0.0}, sf.ConfigError, "`epsilon`"),
        ({"epsilon": 1.0, "sigma": 1.0}, sf.ConfigError, "not both"),
        ({"rounds": 0}, sf.ConfigError, "`rounds`"),
        ({"rounds": 2.5}, sf.ConfigError, "`rounds`"),
        ({"batch": 500.0}, sf.ConfigError, "batch"),
        ({"estimator": "adam"}, sf.ConfigError, "`estimator`"),
        ({"estimator": "sgd"}, sf.ConfigError, "batch"),
        ({"fraction": 1.5}, sf.ConfigError, "`fraction`"),
        ({"compressor": "rand-k"}, sf.ConfigError, "needs `fraction`"),
        ({"compressor": "topk"}, sf.ConfigError, "`compressor`"),
        ({"schedule": "step"}, sf.ConfigError, "`schedule`"),
        ({"adjacency": "near"}, sf.ConfigError, "`adjacency`"),
        ({"noise": "some"}, sf.ConfigError, "`noise`"),
        ({"noise": "secure", "gradients": "vmap"}, sf.ConfigError, "one by one"),
        ({"participation": 0.0}, sf.ConfigError, "`participation`"),
        ({"module": nn.BatchNorm1d(4)}, sf.UnsupportedModule, "GroupNorm"),
        ({"loss": nn.CrossEntropyLoss(torch.tensor([1.0, 9.0]))}, sf.UnsupportedModule, "batch"),
        ({"module": nn.Linear(4, 2).double()}, sf.UnsupportedModule, "float64"),
        ({"module": nn.Linear(4, 2).half()}, sf.UnsupportedModule, r"float16.*module\.float\(\)"),
        ({"module": nn.Linear(4, 2, device="meta")}, sf.UnsupportedModule, "to_empty"),
        ({"module": nn.Linear(3, 2)}, sf.DataError, r"`module` cannot be called.*X is.*, 4\]"),
        (
            {"clients": [((X * 9).long(), Y)], "test": None},
            sf.DataError,
            "`module` cannot be called.*X is int64",
        ),
        (
            {"clients": [(X, Y.float())], "test": None},
            sf.DataError,
            "`loss` cannot be computed.*y is float32",
        ),
        (
            {"clients": [(X, Y[:, None])], "test": None},
            sf.DataError,
            r"`loss` cannot.*y is int64.*\[20, 1\]",
        ),
        ({"clients": [(X, Y + 5)]}, sf.DataError, "`loss` cannot be computed.*out of bounds"),
        ({"loss": F.binary_cross_entropy_with_logits}, sf.DataError, "`loss` cannot be computed"),
        ({"clients": [(X, Y), (X, LATER)]}, sf.DataError, r"clients\[1\].*label 7.*from 0 to 1"),
        ({"test": (X, LATER)}, sf.DataError, "`test`.*label 7"),
    ],
)
def test_bad_input_is_named(settings, error, words):
    module = settings.get("module")
    others = {name: value for name, value in settings.items() if name != "module"}
    with pytest.raises(error, match=words):
        run(module, **others)


def test_labels_that_the_loss_ignores_are_labels():
    ignored = torch.where(torch.arange(len(Y)) % 3 == 0, -100, Y)
    run(loss=nn.CrossEntropyLoss(reduction="none"), clients=[(X, ignored)], rounds=2)


def test_saga_is_refused_where_its_tables_would_not_fit(monkeypatch):
    from soteriafl.torch import simulate as module

    monkeypatch.setattr(sys.modules[module.__module__], "_TABLES", 1000)
    with pytest.raises(sf.ConfigError, match="use svrg"):
        run(**SETTINGS["saga"])


def test_plots_and_frames():
    pytest.importorskip("matplotlib").use("Agg")
    pytest.importorskip("pandas")
    ended = run(evaluate_every=3)
    axes = ended.plot()
    assert axes.get_ylabel() == "test accuracy" and axes.get_xlabel() == "bytes sent"
    assert len(ended.to_pandas()) == len(ended.rounds["round"]) == 5
    with pytest.raises(KeyError, match="speed"):
        ended.plot("speed")
    assert "sent up" in repr(ended)


def test_a_run_is_saved_and_read_again(tmp_path):
    ended = run(network(), batch=20, fraction=0.3)
    ended.save(tmp_path / "run")
    files = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert "report.html" in files and "model.safetensors" in files and "config.toml" in files
    again = st.load(tmp_path / "run", network())
    assert bits(again.module) == bits(ended.module)
    assert again.privacy.epsilon == ended.privacy.epsilon
    assert set(again.model) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert again.model["0.weight"].shape == (8, 4)
    # Whoever has no module sees the tensors.
    assert np.array_equal(sf.load(tmp_path / "run").model["2.bias"], ended.model["2.bias"])
    page = ended.report()
    assert "<svg" in page and "right" not in ended.summary.get("data", {})
    assert "<svg" in ended._repr_html_() and "proved" in ended._repr_html_()
    for other in (nn.Linear(4, 2), network().eval()):
        with pytest.raises(sf.DataError, match="another module"):
            st.load(tmp_path / "run", other)
    with pytest.raises(sf.DataError, match="module"):
        ended.predict(np.zeros((1, 4)))


def test_any_key_of_the_configuration(tmp_path):
    plain = run(batch=20)
    keys = {"batch": 20, "preset": "soteriafl-sgd", "compressor": "identity"}
    same = run(config={"algorithm": keys})
    assert bits(plain.module) == bits(same.module)
    persons = run(batch=20, config={"privacy.records_per_person": 3})
    assert "records_per_person = 3" in persons.config
    assert persons.privacy.sigma > 1.5 * plain.privacy.sigma
    recursive = run(config={"algorithm.preset": "ldp-srm", "algorithm.batch": 20})
    assert recursive.privacy.epsilon <= 3 and "recursive" in recursive.config
    nested = run(batch=20, config={"algorithm": {"participation": 0.5}})
    assert nested.traffic.uplink_bytes < plain.traffic.uplink_bytes
    for config, words in (
        ({"model.kind": "mlp"}, "not for a module"),
        ({"privacy.delta": 1e-3, "algorithm.rounds": 5}, "rounds"),
        ({"algorithm.speed": 5}, "speed"),
        ({"data.scale": "standard"}, "data.scale"),
        ("run.toml", "`config` must be a mapping"),
    ):
        with pytest.raises(sf.ConfigError, match=words):
            run(batch=20, config=config)
