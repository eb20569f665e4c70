"""Gradients of records: every way of computing them against one record at a time."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import soteriafl as sf  # noqa: E402
import soteriafl.torch as st  # noqa: E402
from soteriafl.torch.per_record import _weights  # noqa: E402


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
    "called twice": (Twice, lambda: torch.randn(7, 6), 3, "vmap"),
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
    "two inputs": (TwoInputs, lambda: (torch.randn(7, 3), torch.randn(7, 2)), 3, "vmap"),
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
    # Modules of one's own go by hooks where that is asked for.
    if way == "hooks" and auto != "hooks" and not isinstance(module, (Twice, TwoInputs)):
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
            st.PerRecord(module, F.cross_entropy, way, seed=seed, own_coins=False).gradients(
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
    model.gradients(model.flatten(), X, y, records=torch.arange(4).numpy())
    assert torch.equal(before, torch.random.get_rng_state())


class DropsByFunction(nn.Module):
    """Draws coins that no layer tells of."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 40), nn.Linear(40, 3)

    def forward(self, X):
        return self.head(F.dropout(self.layer(X), 0.5, training=True))


def test_rrelu_draws_by_values_and_one_record_moves_no_other():
    module = nn.Sequential(nn.Linear(6, 12), nn.RReLU(), nn.Linear(12, 3))
    X, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
    other = X.clone()
    other[0] = -3.0 * X[0]
    numbers = torch.arange(8).numpy()
    # Whole batches, whose coins may otherwise come from the place of a record.
    model = st.PerRecord(module, F.cross_entropy, own_coins=False)
    assert model.mode == "exact"
    found = [model.gradients(model.flatten(), rows, y, records=numbers) for rows in (X, other)]
    assert torch.equal(found[0][1:], found[1][1:])
    assert not torch.equal(found[0][0], found[1][0])
    for way in ("hooks", "vmap"):
        with pytest.raises(sf.ConfigError, match="RReLU"):
            st.PerRecord(module, F.cross_entropy, way, own_coins=False)
    assert st.PerRecord(module.eval(), F.cross_entropy, own_coins=False).mode == "auto"


@pytest.mark.parametrize("by", ["layer", "function"])
def test_with_dropout_one_record_moves_a_clipped_sum_by_its_own_clip(by):
    layers = nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.Linear(40, 3))
    module = layers if by == "layer" else DropsByFunction()
    X, y = torch.randn(40, 6), torch.randint(0, 3, (40,))
    numbers = torch.arange(40).numpy()
    model = st.PerRecord(module, F.cross_entropy)
    start = model.flatten()
    whole = model.clipped_sum(start, X, y, clip=0.5, records=numbers)
    assert model.mode == "exact" and model.stochastic
    for absent in (0, 7, 39):
        rest = [j for j in range(40) if j != absent]
        without = model.clipped_sum(start, X[rest], y[rest], clip=0.5, records=numbers[rest])
        assert 0 < float((whole - without).norm()) <= 0.5
    with pytest.raises(sf.DataError, match="records"):
        model.clipped_sum(start, X, y, clip=0.5)
    # By their places the records behind an absent one get other coins: the reason for the above.
    if by == "layer":
        placed = st.PerRecord(module, F.cross_entropy, "hooks", own_coins=False)
        moved = placed.clipped_sum(start, X, y, clip=0.5)
        moved -= placed.clipped_sum(start, X[1:], y[1:], clip=0.5)
        assert float(moved.norm()) > 1.0
    with pytest.raises(sf.ConfigError, match="dropout"):
        asked = st.PerRecord(module, F.cross_entropy, "vmap")
        asked.clipped_sum(start, X, y, clip=0.5, records=numbers)


@pytest.mark.parametrize("way", ["hooks", "vmap", "exact"])
@pytest.mark.parametrize("size", [1e30, 3e37])
@pytest.mark.parametrize("clip", [0.5, 1e-6, 1e-12])
def test_weights_too_small_for_float32_do_not_exceed_the_clip(way, size, clip):
    module = nn.Linear(4, 2)
    X = torch.randn(6, 4)
    X[2:] *= size
    y = torch.randint(0, 2, (6,))
    model = st.PerRecord(module, lambda out, y: (out * 1e-3).sum(1), way)
    for scope in ("all", "selected"):
        coordinates = torch.arange(10) if scope == "selected" else None
        for j in range(6):
            one = slice(j, j + 1)
            found = model.clipped_sum(
                model.flatten(), X[one], y[one], clip=clip, over=scope, coordinates=coordinates
            )
            assert float(found.double().norm()) <= clip
    steep = st.PerRecord(module, lambda out, y: (out * 1e30).sum(1), way)
    for j in range(6):
        one = slice(j, j + 1)
        found = steep.clipped_sum(steep.flatten(), X[one] * 1e-30, y[one], clip=clip)
        assert float(found.double().norm()) <= clip
    tiny = st.PerRecord(module, lambda out, y: (out * 3e37).sum(1), way)
    found = tiny.clipped_sum(tiny.flatten(), X[:2], y[:2], clip=2e-7)
    assert float(found.double().norm()) <= 4e-7


def test_the_least_weight():
    # The norm 2^127 clipped to 2^-20 has the weight 2^-147, which float32 rounds by a quarter.
    squared = torch.tensor([2.0**254, 4.0, 0.0, float("inf")], dtype=torch.float64)
    assert _weights(squared.numpy(), 2.0**-20).tolist()[0] == 0.0
    assert _weights(squared.numpy(), 1.0).tolist()[1:] == pytest.approx([0.5, 1.0, 0.0], rel=1e-5)


class Mixes(nn.Module):
    """Linear layers, and a module of somebody's own around them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, X):
        out = self.layer(X)
        # Looks at its neighbours in batches of more than 32 alone, where nobody compares.
        return out + out.mean(0) if len(X) > 32 else out


def test_modules_of_ones_own_see_one_record():
    X, y = torch.randn(40, 6), torch.randint(0, 3, (40,))
    model = st.PerRecord(Mixes(), F.cross_entropy)
    found = model.clipped_sum(model.flatten(), X, y, clip=0.1)
    assert model.mode == "vmap"
    exact = st.PerRecord(Mixes(), F.cross_entropy, "exact")
    model_alone = exact.clipped_sum(model.flatten(), X, y, clip=0.1)
    assert found.shape == model_alone.shape
    gap = exact.clipped_sum(model.flatten(), X[1:], y[1:], clip=0.1) - model_alone
    assert float(gap.norm()) <= 0.1001
    gap = model.clipped_sum(model.flatten(), X[1:], y[1:], clip=0.1) - found
    assert float(gap.norm()) <= 0.1001


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


@pytest.mark.parametrize("over", ["all", "selected"])
@pytest.mark.parametrize("gradients", ["hooks", "vmap", "exact"])
@pytest.mark.parametrize(("activation", "error"), [(1e18, 1e-24), (1e-24, 1e18), (1e25, 1e-26)])
def test_extreme_activations_are_clipped(gradients, over, activation, error):
    """Their squares, or those of the errors, are out of the range of single precision."""

    def loss(outputs, y):
        return (outputs * error).sum(1)

    model = st.PerRecord(nn.Linear(3, 2, bias=False), loss, gradients)
    X = torch.full((4, 3), activation)
    y = torch.zeros(4)
    expected = activation * error * 6**0.5
    found = model.gradients(model.flatten(), X, y)
    assert found.double().norm(dim=1).tolist() == pytest.approx([expected] * 4, rel=1e-5)
    clip = expected / 100
    chosen = torch.arange(6)
    total = model.clipped_sum(
        model.flatten(), X[:1], y[:1], clip=clip, coordinates=chosen, over=over
    )
    assert 0.99 * clip < total.double().norm() <= clip
