"""The accountant through Python: the golden values, the exceptions, the price of a call."""

import csv
import json
import math
import pathlib
import pickle
import time

import numpy as np
import pytest

import soteriafl as sf

VECTORS = pathlib.Path(__file__).resolve().parents[3] / "vectors"


def rows(name):
    with open(VECTORS / name) as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def optional(text):
    return float(text) if text else None


def close(found, expected):
    return math.isclose(found, expected, rel_tol=1e-9)


@pytest.mark.parametrize("row", rows("costs.csv"), ids=lambda row: "-".join(list(row.values())[:7]))
def test_costs_are_those_of_the_library(row):
    mechanism = sf.Mechanism(
        estimator=row["estimator"],
        records=1000,
        batch=20,
        clip=1,
        difference_clip=optional(row["difference_clip"]),
        clip_scope=row["clip_scope"],
        rand_k=optional(row["rand_k"]),
    )
    sigma, rounds = float(row["sigma"]), int(row["rounds"])
    asked = {"rounds": rounds, "adjacency": row["adjacency"], "method": row["method"]}
    cost = sf.epsilon(mechanism, sigma=sigma, delta=1e-5, **asked)
    assert close(cost.epsilon, float(row["epsilon"]))
    assert close(cost.epsilon_unamplified, float(row["epsilon_unamplified"]))
    spent = sf.spent(mechanism, sigma=sigma, delta=1e-5, checkpoints=12, **asked)
    assert spent.shape == (rounds + 1,) and close(spent[rounds // 2], float(row["spent_half_way"]))
    found = sf.calibrate(mechanism, epsilon=float(row["target"]), delta=1e-5, **asked)
    assert close(found.sigma, float(row["calibrated_sigma"]))
    assert close(found.cost.epsilon, float(row["calibrated_epsilon"]))
    if row["method"] == "pld":
        delta = sf.delta(mechanism, sigma=sigma, epsilon=1, **asked)
        assert close(delta, float(row["delta_at_one"]))


def test_epsilon_lies_between_the_converged_centre_and_the_reference_bound():
    adjacencies = {"add_remove": "zero-out", "replace_one": "replace-one"}
    for row in rows("accounting.csv"):
        sizes = [float(size) for size in row["sensitivities"].split(";")]
        if row["mechanism"] == "mixture_gaussian":
            shares = np.array([float(share) for share in row["probs"].split(";")])
            shares = shares / shares.sum()
        else:
            sizes, shares = [0.0, sizes[0]], [1 - float(row["q"]), float(row["q"])]
        found = sf.epsilon(
            sf.Shifts(tuple(sizes), tuple(shares)),
            sigma=float(row["sigma"]),
            rounds=int(float(row["steps"])),
            delta=float(row["delta"]),
            adjacency=adjacencies[row["adjacency"]],
        )
        bound = max(float(row["eps_ref_upper"]), optional(row["eps_dpacct_h1e4"]) or 0)
        assert float(row["eps_ref_richardson"]) * (1 - 1e-4) <= found.epsilon
        assert found.epsilon <= bound * (1 + 1e-4)


def test_a_call_costs_less_than_a_millisecond_above_the_library():
    # The closed form takes the library microseconds, so nearly all of this is Python's: some tens
    # of them. Processor time of the best call: whatever else the machine does is not in it.
    mechanism = sf.Mechanism(records=1000)
    times = []
    for _ in range(200):
        start = time.thread_time()
        sf.epsilon(mechanism, sigma=0.05, rounds=10, delta=1e-5)
        times.append(time.thread_time() - start)
    assert min(times) < 1e-3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"estimator": "adam"}, "no estimator is called `adam`"),
        ({"estimator": 3}, "`estimator` must be a word"),
        ({"records": 0}, "`records` must be a whole number"),
        ({"records": 10.5}, "`records` must be a whole number"),
        ({"records": True}, "`records` must be a whole number"),
        ({"records": 2**80}, "`records` must be a whole number"),
        ({"estimator": "sgd"}, "say how many records by `batch`"),
        ({"estimator": "sgd", "batch": 1001}, "sampling rate"),
        ({"clip": float("nan")}, "`clip` must be a number"),
        ({"clip": -1}, "the clip must be finite and positive"),
        ({"clip": "1"}, "`clip` must be a number"),
        ({"rand_k": 1.5}, "random-k fraction"),
        ({"clip_scope": "estimate"}, "does not bound one record"),
        ({"estimator": "saga", "batch": 5, "clip_scope": "selected"}, "gd and sgd alone"),
    ],
)
def test_mechanisms_that_make_no_sense_are_refused(arguments, words):
    with pytest.raises(sf.AccountError, match=words):
        sf.Mechanism(**{"records": 1000, **arguments})


def test_questions_that_make_no_sense_are_refused():
    mechanism = sf.Mechanism(records=1000)
    good = {"sigma": 0.05, "rounds": 10, "delta": 1e-5}
    bad = [
        ({"sigma": 0}, "positive"),
        ({"sigma": None}, "`sigma`"),
        ({"rounds": 0}, "`rounds`"),
        ({"delta": 0}, "delta must lie"),
        ({"delta": 1}, "delta must lie"),
        ({"adjacency": "add-remove"}, "there are replace-one, zero-out"),
        ({"method": "prv"}, "there are pld, rdp"),
    ]
    for change, words in bad:
        with pytest.raises(sf.AccountError, match=words):
            sf.epsilon(mechanism, **{**good, **change})
        with pytest.raises(ValueError, match=words):
            sf.spent(mechanism, **{**good, **change})
    with pytest.raises(sf.AccountError, match="a Mechanism or Shifts, found str"):
        sf.epsilon("gd", **good)
    with pytest.raises(sf.AccountError, match="at most 268435456 rounds"):
        sf.spent(mechanism, **{**good, "rounds": 2**40})
    with pytest.raises(sf.AccountError, match="finite and positive"):
        sf.calibrate(mechanism, epsilon=-1, rounds=10, delta=1e-5)
    with pytest.raises(TypeError):
        sf.epsilon(mechanism, 0.05, 10, 1e-5)


def test_noise_multipliers():
    sgd = sf.Mechanism(estimator="sgd", records=6000, batch=128, clip=2)
    assert math.isclose(sgd.noise_multiplier(0.5), 0.5 * 128 / 2)
    assert math.isclose(sgd.sigma(sgd.noise_multiplier(0.5)), 0.5)
    gd = sf.Mechanism(records=6000, clip=2)
    assert math.isclose(gd.noise_multiplier(0.5), 0.5 * 6000 / 2)


def test_values_compare_and_travel():
    mechanism = sf.Mechanism(estimator="svrg", records=np.int64(50), batch=np.float32(5), clip=1)
    assert mechanism == pickle.loads(pickle.dumps(mechanism)) and hash(mechanism)
    assert repr(mechanism).startswith("Mechanism(estimator='svrg', records=50, batch=5.0")
    shifts = sf.Shifts([0.0, 1.0], [0.5, 0.5])
    assert shifts == pickle.loads(pickle.dumps(shifts))
    assert type(mechanism.records) is int


class TestAccountant:
    sgd = sf.Mechanism(estimator="sgd", records=6000, batch=128)
    gd = sf.Mechanism(records=6000, rand_k=0.05)

    def test_one_release_costs_what_it_costs_alone(self):
        alone = sf.epsilon(self.gd, sigma=0.002, rounds=70, delta=1e-5)
        accountant = sf.Accountant()
        assert accountant.get_epsilon(1e-5) == 0 and accountant.get_delta(1.0) == 0
        accountant.compose(self.gd, sigma=0.002, rounds=30).compose(self.gd, sigma=0.002, rounds=40)
        assert [event.rounds for event in accountant.events] == [70]
        assert accountant.get_epsilon(1e-5) == alone.epsilon and alone.amplified
        delta = sf.delta(self.gd, sigma=0.002, rounds=70, epsilon=1)
        assert accountant.get_delta(1) == delta

    def test_two_releases_cost_more_than_each_and_less_than_both(self):
        costs = [
            sf.epsilon(m, sigma=s, rounds=150, delta=1e-5, amplification=False).epsilon
            for m, s in [(self.sgd, 0.02), (self.gd, 0.01)]
        ]
        both = sf.Accountant()
        both.compose(self.sgd, sigma=0.02, rounds=150).compose(self.gd, sigma=0.01, rounds=150)
        assert costs[0] < both.get_epsilon(1e-5) < sum(costs)
        # Chosen by looking, the same releases cost as much or more: only the filter holds then.
        looking = sf.Accountant(adaptive=True)
        looking.compose(self.sgd, sigma=0.02, rounds=150).compose(self.gd, sigma=0.01, rounds=150)
        assert looking.get_epsilon(1e-5) >= both.get_epsilon(1e-5)

    def test_noise_within_what_is_left(self):
        accountant = sf.Accountant().compose(self.sgd, sigma=0.02, rounds=150)
        found = accountant.calibrate(self.gd, epsilon=1.5, delta=1e-5, rounds=100)
        assert len(accountant.events) == 1
        accountant.compose(self.gd, sigma=found.sigma, rounds=100)
        assert 1.499 < found.cost.epsilon <= 1.5
        assert accountant.get_epsilon(1e-5) <= found.cost.epsilon
        with pytest.raises(sf.AccountError, match="no sigma"):
            accountant.calibrate(self.gd, epsilon=0.1, delta=1e-5, rounds=100)

    def test_budget_is_asked_before(self):
        accountant = sf.Accountant(budget=(1.0, 1e-5))
        assert accountant.adaptive
        accountant.compose(self.sgd, sigma=0.05, rounds=100)
        before = accountant.get_epsilon(1e-5)
        with pytest.raises(sf.BudgetExceeded, match="above the budget of 1; nothing was spent"):
            accountant.compose(self.sgd, sigma=0.001)
        assert accountant.get_epsilon(1e-5) == before
        with pytest.raises(sf.AccountError, match="fixed in advance only"):
            accountant.get_delta(1.0)

    def test_text_leads_back(self):
        accountant = sf.Accountant(adjacency="zero-out", budget=(3, 1e-6), adaptive=False)
        accountant.compose(self.sgd, sigma=0.02, rounds=150)
        accountant.compose(sf.Shifts((0.0, 1.0), (0.9, 0.1)), sigma=20.0)
        again = sf.Accountant.from_json(accountant.to_json())
        assert again.events == accountant.events and again.budget == accountant.budget
        assert again.get_epsilon(1e-6) == accountant.get_epsilon(1e-6)
        for text in ["", "[]", "{}", json.dumps({"events": []})]:
            with pytest.raises(sf.AccountError, match="no accountant's text"):
                sf.Accountant.from_json(text)
        altered = accountant.to_json().replace('"sgd"', '"adam"')
        with pytest.raises(sf.AccountError, match="no estimator"):
            sf.Accountant.from_json(altered)

    def test_bad_settings_are_refused_at_once(self):
        for bad in [{"adjacency": "x"}, {"budget": 1.0}, {"budget": (0, 1e-5)}, {"budget": (1, 2)}]:
            with pytest.raises(sf.AccountError):
                sf.Accountant(**bad)

    @pytest.mark.filterwarnings("ignore")
    def test_as_events_of_dp_accounting(self):
        accounting = pytest.importorskip("dp_accounting")
        from dp_accounting.pld import pld_privacy_accountant

        relation = accounting.NeighboringRelation
        svrg = sf.Mechanism(estimator="svrg", records=6000, batch=128, difference_clip=0.25)
        for mechanism, sigma in [(self.sgd, 0.02), (self.gd, 0.01), (svrg, 0.02)]:
            accountant = sf.Accountant(adjacency="zero-out")
            accountant.compose(mechanism, sigma=sigma, rounds=100)
            theirs = pld_privacy_accountant.PLDAccountant(relation.ADD_OR_REMOVE_ONE)
            theirs.compose(accountant.to_dp_event())
            plain = sf.epsilon(
                mechanism,
                sigma=sigma,
                rounds=100,
                delta=1e-5,
                adjacency="zero-out",
                amplification=False,
            )
            assert math.isclose(theirs.get_epsilon(1e-5), plain.epsilon, rel_tol=0.01)


def test_persons_are_charged_for_all_their_records():
    """Exact for GD, whose records all take part: K records move the estimate K times as far."""
    question = {"sigma": 0.05, "rounds": 40, "delta": 1e-5}
    three = sf.Mechanism(records=1000, clip=1.0, records_per_person=3)
    cost = sf.epsilon(three, **question)
    tripled = sf.epsilon(sf.Mechanism(records=1000, clip=3.0), **question)
    assert cost.epsilon == pytest.approx(tripled.epsilon, rel=1e-6)
    assert "for persons with up to 3 records" in str(cost) and cost.records_per_person == 3
    # The noise that other libraries are told is about one record.
    assert three.noise_multiplier(0.05) == sf.Mechanism(records=1000).noise_multiplier(0.05)
    # Of sampled records the coins are independent: binomial weights.
    sampled = sf.Mechanism(estimator="sgd", records=1000, batch=50, records_per_person=2)
    expected = [(0.0, 0.95**2), (0.02, 2 * 0.95 * 0.05), (0.04, 0.05**2)]
    assert np.allclose(sampled.shifts, expected, rtol=1e-12)
    for method in ("pld", "rdp"):
        one = dict(question, sigma=0.1, method=method)
        few = sf.epsilon(sf.Mechanism(estimator="sgd", records=1000, batch=50), **one)
        assert sf.epsilon(sampled, **one).epsilon > few.epsilon
    found = sf.calibrate(three, epsilon=1, rounds=40, delta=1e-5)
    assert found.sigma == pytest.approx(
        3 * sf.calibrate(sf.Mechanism(records=1000), epsilon=1, rounds=40, delta=1e-5).sigma,
        rel=1e-5,
    )
    assert sf.spent(three, **question)[-1] >= cost.epsilon * (1 - 1e-9)
    with pytest.raises(sf.AccountError, match="records_per_person"):
        sf.Mechanism(records=10, records_per_person=1001)
    with pytest.raises(sf.AccountError, match="records_per_person"):
        sf.Mechanism(records=10, records_per_person=0)


def test_an_accountant_speaks_of_the_fewest_records_of_a_person():
    accountant = sf.Accountant()
    assert accountant.records_per_person is None
    three = sf.Mechanism(records=1000, records_per_person=3)
    accountant.compose(three, sigma=0.05, rounds=4)
    assert accountant.records_per_person == 3
    again = sf.Accountant.from_json(accountant.to_json())
    assert again.events == accountant.events and again.records_per_person == 3
    assert pickle.loads(pickle.dumps(three)) == three
    accountant.compose(sf.Mechanism(records=1000), sigma=0.05)
    assert accountant.records_per_person == 1
    # What was written before there were persons is about records.
    text = accountant.to_json().replace(',\n   "records_per_person": 1', "")
    old = sf.Accountant.from_json(text.replace(',\n   "records_per_person": 3', ""))
    assert old.records_per_person == 1


def test_what_sag_remembers_is_priced():
    def shifts(memory=None):
        return sf.Mechanism(estimator="sag", records=1000, batch=50, memory=memory).shifts

    # A record moves the table's mean by clip / records at most, and a batch's mean by
    # clip / batch.
    for memory in (0.1, 0.5, 0.9):
        stays, drawn = memory / 1000, (1 - memory) / 50 + memory / 1000
        assert shifts(memory) == ((pytest.approx(stays), 0.95), (pytest.approx(drawn), 0.05))
    assert shifts() == shifts(0.5) and shifts(1.0) == ((0.001, 1.0),)
    mechanism = sf.Mechanism(estimator="sag", records=1000, batch=50)
    assert mechanism.memory == 0.5 and "memory=0.5" in repr(mechanism)
    accountant = sf.Accountant()
    asked = sf.Mechanism(estimator="sag", records=1000, batch=50, memory=0.2)
    accountant.compose(asked, sigma=0.1, rounds=5)
    again = sf.Accountant.from_json(accountant.to_json())
    assert again.events[0].mechanism.memory == 0.2
    assert again.get_epsilon(1e-5) == accountant.get_epsilon(1e-5)
    for wrong in (0.0, 1.5, float("nan")):
        with pytest.raises(sf.AccountError, match="memory"):
            shifts(wrong)
    with pytest.raises(sf.AccountError, match="memory"):
        sf.Mechanism(estimator="sgd", records=1000, batch=50, memory=0.5)
