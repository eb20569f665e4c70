"""Gradients of records: every way of computing them against one record at a time."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import soteriafl as sf  # noqa: E402
import soteriafl.torch as st  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.out = nn.Linear(6, 11, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, X):
        return self.out(self.embedding(X).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, X):
        return self.head(self.lstm(X)[0][:, -1])


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, X):
        return self.head(self.layer(X).mean(1))


class Twice(nn.Module):
    """One layer, called twice."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, X):
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(X)))))


class Borrowed(nn.Module):
    """Uses a layer's weight without calling the layer: hooks do not see it."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, X):
        return self.head(F.linear(self.layer(X), self.layer.weight))


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 3), nn.Linear(2, 3)

    def forward(self, a, b):
        return self.left(a) + self.right(b)


def frozen():
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    module[2].bias.requires_grad_(False)
    return module


def fixed_statistics():
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3))
    module[0].requires_grad_(False)
    module[1].requires_grad_(False).eval()
    module[1].running_mean.normal_()
    return module


def pictures(rows=7):
    return torch.randn(rows, 2, 6, 6)


# name: (module, features, classes, the way "auto" takes)
CASES = {
    "linear": (lambda: nn.Linear(6, 3), lambda: torch.randn(7, 6), 3, "hooks"),
    "mlp in place": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
        lambda: torch.randn(7, 6),
        3,
        "hooks",
    ),
    "sequence": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Flatten(), nn.Linear(15, 3)),
        lambda: torch.randn(7, 3, 4),
        3,
        "hooks",
    ),
    "called twice": (Twice, lambda: torch.randn(7, 6), 3, "hooks"),
    "frozen": (frozen, lambda: torch.randn(7, 6), 3, "hooks"),
    "fixed statistics": (fixed_statistics, pictures, 3, "hooks"),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(4, 6, (2, 3), groups=2, dilation=(1, 1), bias=False),
            nn.Flatten(),
            nn.Linear(12, 3),
        ),
        pictures,
        3,
        "hooks",
    ),
    "convolution of signals": (
        lambda: nn.Sequential(nn.Conv1d(3, 4, 3, dilation=2), nn.Flatten(), nn.Linear(24, 3)),
        lambda: torch.randn(7, 3, 10),
        3,
        "hooks",
    ),
    "borrowed weight": (Borrowed, lambda: torch.randn(7, 6), 3, "vmap"),
    "two inputs": (TwoInputs, lambda: (torch.randn(7, 3), torch.randn(7, 2)), 3, "hooks"),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(20, 3)),
        lambda: torch.randint(0, 11, (7, 5)),
        3,
        "vmap",
    ),
    "tied": (Tied, lambda: torch.randint(0, 11, (7, 4)), 11, "vmap"),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)),
        lambda: torch.randn(7, 6),
        3,
        "vmap",
    ),
    "group norm": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3)
        ),
        pictures,
        3,
        "vmap",
    ),
    "lstm": (Recurrent, lambda: torch.randn(7, 5, 4), 3, None),
    "transformer": (Transformer, lambda: torch.randn(7, 5, 8), 3, None),
}


@pytest.fixture(params=CASES)
def case(request):
    build, features, classes, auto = CASES[request.param]
    torch.manual_seed(3)
    return build(), features(), torch.randint(0, classes, (7,)), auto


def by_hand(module, X, y):
    """The gradients of the module itself, one record at a time."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    rows = []
    for j in range(len(y)):
        one = tuple(part[j : j + 1] for part in X) if isinstance(X, tuple) else (X[j : j + 1],)
        loss = F.cross_entropy(module(*one), y[j : j + 1])
        parts = torch.autograd.grad(loss, parameters)
        rows.append(torch.cat([part.reshape(-1) for part in parts]))
    return torch.stack(rows)


@pytest.mark.parametrize("way", ["auto", "hooks", "vmap", "exact"])
def test_gradients_and_clipped_sums(case, way):
    module, X, y, auto = case
    expected = by_hand(module, X, y)
    if way == "hooks" and auto != "hooks":
        with pytest.raises(sf.UnsupportedModule, match="vmap"):
            model = st.PerRecord(module, F.cross_entropy, way)
            model.gradients(model.flatten(), X, y)
        return
    model = st.PerRecord(module, F.cross_entropy, way, chunk=3)
    start = model.flatten()
    assert model.dimension == expected.shape[1] == len(start)
    scale = expected.abs().max()
    found = model.gradients(start, X, y)
    assert (found - expected).abs().max() <= 2e-6 * scale
    if auto is not None:
        assert model.mode == (auto if way == "auto" else way)

    norms = expected.norm(dim=1)
    coordinates = torch.arange(0, model.dimension, 3)
    clip = float(norms.median())
    for over in ("all", "selected"):
        seen = norms if over == "all" else expected[:, coordinates].norm(dim=1)
        weights = torch.clamp(clip / seen, max=1.0)
        total = weights @ expected
        found = model.clipped_sum(start, X, y, clip=clip, coordinates=coordinates, over=over)
        assert (found - total[coordinates]).abs().max() <= 2e-5 * scale
    found = model.clipped_sum(start, X, y, clip=None)
    assert (found - expected.sum(0)).abs().max() <= 1e-5 * scale * len(y)
    for j in range(len(y)):
        one = slice(j, j + 1)
        record = tuple(part[one] for part in X) if isinstance(X, tuple) else X[one]
        alone = model.clipped_sum(start, record, y[one], clip=clip / 2)
        assert alone.double().norm() <= clip / 2


def test_losses_may_be_reduced_as_they_like():
    module, X = nn.Linear(5, 3), torch.randn(9, 5)
    y = torch.randint(0, 3, (9,))
    found = []
    for reduction in ("mean", "sum", "none"):
        for way in ("hooks", "vmap", "exact"):
            loss = nn.CrossEntropyLoss(reduction=reduction)
            model = st.PerRecord(module, loss, way)
            found.append(model.gradients(model.flatten(), X, y))
            losses, _ = model.losses(model.flatten(), X, y)
            assert torch.allclose(losses, F.cross_entropy(module(X), y, reduction="none"))
    for other in found[1:]:
        assert torch.allclose(found[0], other, atol=1e-6)


def test_regression_and_masks():
    module, X, y = nn.Linear(5, 1), torch.randn(9, 5), torch.randn(9, 1)
    for loss in (F.mse_loss, nn.HuberLoss(), lambda out, y: ((out - y) ** 2).sum(1)):
        ways = [st.PerRecord(module, loss, way) for way in ("hooks", "vmap", "exact")]
        rows = [model.gradients(model.flatten(), X, y) for model in ways]
        assert torch.allclose(rows[0], rows[2], atol=1e-6)
        assert torch.allclose(rows[1], rows[2], atol=1e-6)


def test_a_record_without_a_finite_gradient_adds_nothing():
    module, X = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)), torch.randn(6, 4)
    y = torch.randint(0, 3, (6,))
    broken = X.clone()
    broken[2] = float("inf")
    good = torch.tensor([0, 1, 3, 4, 5])
    for way in ("hooks", "vmap", "exact"):
        model = st.PerRecord(module, F.cross_entropy, way, chunk=4)
        start = model.flatten()
        model.gradients(start, X, y)
        found = model.clipped_sum(start, broken, y, clip=0.5)
        expected = model.clipped_sum(start, X[good], y[good], clip=0.5)
        assert torch.allclose(found, expected, atol=1e-6), way


def test_dropout_follows_the_seed():
    module = nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.Linear(40, 3))
    X, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    for way in ("hooks", "vmap", "exact"):
        rows = [
            st.PerRecord(module, F.cross_entropy, way, seed=seed).gradients(
                st.PerRecord(module, F.cross_entropy).flatten(), X, y
            )
            for seed in (1, 1, 2)
        ]
        assert torch.equal(rows[0], rows[1])
        assert not torch.equal(rows[0], rows[2])
        # Half of the units are off, so half of the last layer's gradient is zero.
        off = (rows[0][:, -123:-3] == 0).float().mean()
        assert 0.2 < float(off) < 0.8
    # One by one, a record's coins are its own: they do not depend on its place.
    model = st.PerRecord(module, F.cross_entropy, "exact")
    forward = model.gradients(model.flatten(), X, y, records=torch.arange(4).numpy())
    back = torch.tensor([3, 2, 1, 0])
    backward = model.gradients(model.flatten(), X[back], y[back], records=back.numpy())
    assert torch.equal(forward, backward[back])
    before = torch.random.get_rng_state()
    model.gradients(model.flatten(), X, y)
    assert torch.equal(before, torch.random.get_rng_state())


def test_parameters_by_name():
    module = frozen()
    model = st.PerRecord(module, F.cross_entropy)
    parts = model.unflatten(model.flatten())
    assert list(parts) == ["2.weight", "4.weight", "4.bias"]
    assert torch.equal(model.flatten(parts), model.flatten())
    moved = {name: part + 1 for name, part in parts.items()}
    copy = model.module(moved)
    assert torch.equal(copy[4].bias, module[4].bias + 1)
    assert torch.equal(copy[0].weight, module[0].weight)
    with pytest.raises(sf.DataError, match="35 numbers of float32"):
        model.unflatten(torch.zeros(3))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.BatchNorm1d(3), "BatchNorm1d.*GroupNorm"),
        (nn.BatchNorm2d(3, track_running_stats=False).eval(), "mixes the records"),
        (nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)), r"layer 1 \(SyncBatchNorm\)"),
        (nn.Sequential(nn.Conv2d(1, 2, 2), nn.InstanceNorm2d(2, track_running_stats=True)), "past"),
        (nn.Linear(2, 2).half(), "float16.*float"),
        (nn.Linear(2, 2).bfloat16(), "bfloat16"),
        (nn.Linear(2, 2).double(), "float64"),
        (nn.Linear(2, 2, dtype=torch.complex64), "complex"),
        (nn.Linear(2, 2, device="meta"), "meta.*cpu"),
        (nn.LazyLinear(2), "no shape yet"),
        (nn.Embedding(3, 2, max_norm=1.0), "max_norm=None"),
        (nn.Embedding(3, 2, scale_grad_by_freq=True), "frequency"),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2)), "weight_norm"),
        (nn.Linear(2, 2).requires_grad_(False), "requires_grad"),
        (F.relu, "torch.nn.Module"),
    ],
)
def test_modules_that_are_refused(module, words):
    with pytest.raises(sf.UnsupportedModule, match=words):
        st.check(module)


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, X):
        return self.layer(X - X.mean(0))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, X):
        self.calls += 1
        return self.layer(X)


def test_what_looks_at_the_batch_is_refused():
    X, y = torch.randn(8, 3), torch.tensor([0, 1] * 4)
    module = nn.Linear(3, 2)
    st.check(module, F.cross_entropy, X, y)
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0]))
    with pytest.raises(sf.UnsupportedModule, match="`loss` looks at the batch"):
        st.check(module, weighted, X, y)
    st.check(module, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0]), reduction="none"), X, y)
    contrast = lambda out, y: (out @ out.T).logsumexp(1).mean()  # noqa: E731
    with pytest.raises(sf.UnsupportedModule, match="`loss` looks at the batch"):
        st.check(module, contrast, X, y)
    with pytest.raises(sf.UnsupportedModule, match="`module` looks at the batch"):
        st.check(Centred(), F.cross_entropy, X, y)
    with pytest.raises(sf.UnsupportedModule, match="buffer calls"):
        st.check(Counting(), F.cross_entropy, X, y)
    with pytest.raises(sf.UnsupportedModule, match="one row per record"):
        st.check(nn.Sequential(module, nn.Flatten(0)), F.cross_entropy, X, y)


def test_arguments_are_named():
    module = nn.Linear(2, 2)
    with pytest.raises(sf.ConfigError, match="`gradients`"):
        st.PerRecord(module, F.cross_entropy, "fast")
    with pytest.raises(sf.ConfigError, match="`chunk`"):
        st.PerRecord(module, F.cross_entropy, chunk=0)
    with pytest.raises(sf.ConfigError, match="`loss`"):
        st.PerRecord(module, "cross_entropy")
    model = st.PerRecord(module, F.cross_entropy)
    X, y = torch.randn(2, 2), torch.tensor([0, 1])
    with pytest.raises(sf.ConfigError, match="`clip`"):
        model.clipped_sum(model.flatten(), X, y, clip=-1.0)
    with pytest.raises(sf.ConfigError, match="`over`"):
        model.clipped_sum(model.flatten(), X, y, clip=1.0, over="some")
