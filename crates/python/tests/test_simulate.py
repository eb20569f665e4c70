"""Runs from Python: the bytes of the program, what is accepted, what is refused."""

import csv
import functools
import json
import pickle
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
from programs import ROOT, program

import soteriafl as sf

pytestmark = pytest.mark.filterwarnings("ignore::soteriafl.RunWarning")


def records(rows=4000, features=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (rows, features)).astype(np.float32)
    noise = 0.3 * rng.normal(size=rows)
    return X, np.where(X[:, 0] - X[:, 1] + noise > 0, "yes", "no")


def train(folder, *settings):
    """What the program makes of the same settings."""
    out = folder / "program"
    shutil.rmtree(out, ignore_errors=True)
    sets = [part for setting in settings for part in ("--set", setting)]
    subprocess.run([program(), "train", "--quiet", "--out", out, "--seed", "3", *sets], check=True)
    return out


def same_bits(run, out, but=()):
    """Whether a run and a directory of the program agree to the byte, save for some lines."""
    tensors = run._native.model
    assert tensors == (out / "model.safetensors").read_bytes()
    assert run._native.rounds == (out / "rounds.csv").read_text()

    def lines(text):
        return [
            line
            for line in text.splitlines()
            if not line.startswith("#") and line.split(" = ")[0] not in but
        ]

    assert lines(run.config) == lines((out / "config.toml").read_text())


class TestBits:
    def test_built_in_records(self, tmp_path):
        settings = {"data.source": "a9a", "run.eval_every": 5}
        run = sf.simulate(config=settings, rounds=20, seed=3, progress=False)
        out = train(tmp_path, "algorithm.rounds=20", "run.eval_every=5")
        same_bits(run, out)
        # And the file of the one repeats the other.
        again = sf.simulate(config=out / "config.toml", progress=False)
        same_bits(again, out)

    @pytest.mark.parametrize("threads", [1, 3])
    def test_tables(self, tmp_path, threads):
        X, y = records()
        names = ["age", "height", "income", "b12", "x"]
        table = pd.DataFrame(X, columns=names)
        table.assign(label=y).to_csv(tmp_path / "table.csv", index=False)
        source = f"csv:{tmp_path}/table.csv"
        run = sf.simulate(
            table,
            y,
            test=(table, y),
            clients=7,
            rounds=15,
            seed=3,
            threads=threads,
            config={"algorithm": {"preset": "soteriafl-svrg", "batch": 50}},
            progress=False,
        )
        out = train(
            tmp_path,
            f"data.source={source}",
            f"data.test={source}",
            "data.clients=7",
            "algorithm.rounds=15",
            "algorithm.preset=soteriafl-svrg",
            "algorithm.batch=50",
        )
        same_bits(run, out, but=("source", "test"))

    def test_sparse_rows_and_secure_noise(self, tmp_path):
        rng = np.random.default_rng(1)
        X = sp.random_array((600, 12), density=0.3, rng=rng, dtype=np.float32).tocsr()
        y = np.where(X.sum(axis=1) > 1.8, 1, -1)
        lines = [
            f"{label} "
            + " ".join(f"{c + 1}:{v}" for c, v in zip(row.indices, row.data, strict=True))
            for label, row in zip(y, (X[[i]] for i in range(600)), strict=True)
        ]
        (tmp_path / "rows.svm").write_text("\n".join(lines) + "\n")
        secure = {"privacy.noise": "secure"}
        run = sf.simulate(X, y, clients=4, rounds=10, seed=3, config=secure, progress=False)
        out = train(
            tmp_path,
            f"data.source=libsvm:{tmp_path}/rows.svm?features=12",
            "data.clients=4",
            "algorithm.rounds=10",
            "privacy.noise=secure",
        )
        same_bits(run, out, but=("source",))

    def test_clients_by_their_ids(self):
        X, y = records()
        order = np.argsort(y, kind="stable")
        X, y = X[order], y[order]
        ids = np.repeat([f"clinic {place}" for place in range(8)], 500)
        dealt = sf.simulate(X, y, clients=8, rounds=10, progress=False)
        given = sf.simulate(X, y, clients=ids, rounds=10, progress=False)
        assert dealt._native.model == given._native.model
        assert given.summary["samples_per_client"] == [500] * 8
        uneven = sf.simulate(X, y, clients=pd.Series([1] * 3000 + [7] * 1000), progress=False)
        assert uneven.summary["samples_per_client"] == [3000, 1000]


def golden():
    """The fully specified runs of `vectors/runs.csv`, as configurations with their results."""
    lines = (ROOT / "vectors" / "runs.csv").read_text().splitlines()
    common = next(line for line in lines if line.startswith("# common: "))
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        settings = {}
        for setting in f"{common[len('# common: ') :]} {row['settings']}".split():
            key, value = setting.split("=", 1)
            try:
                settings[key] = json.loads(value)
            except ValueError:
                settings[key] = value
        yield pytest.param(settings, row, id=row["name"])


@pytest.mark.parametrize(("settings", "row"), list(golden()))
def test_golden_runs(settings, row):
    run = sf.simulate(config=settings, progress=False)
    assert run.traffic.uplink_bytes == int(row["uplink_bytes"])
    assert run.traffic.downlink_bytes == int(row["downlink_bytes"])
    assert run.privacy.sigma == pytest.approx(float(row["sigma"]), rel=1e-9)
    expected = pytest.approx(float(row["epsilon"]), rel=1e-9) if row["epsilon"] else None
    assert run.summary["privacy"]["epsilon"] == expected
    # Other processors may round matrix products otherwise.
    assert run.rounds["loss"][-1] == pytest.approx(float(row["loss"]), rel=1e-4)


class TestRecords:
    X, y = records(500)

    def model(self, X, y=None, **more):
        """The numbers of the model; names of features and classes are beside them."""
        y = self.y if y is None else y
        run = sf.simulate(X, y, clients=2, rounds=5, progress=False, **more)
        return {name: tensor.tobytes() for name, tensor in run.model.items()}

    def test_every_form_of_the_same_records_gives_the_same_model(self):
        plain = self.model(self.X)
        double = self.X.astype(np.float64)
        assert self.model(double) == plain
        assert self.model(np.asfortranarray(self.X)) == plain
        assert self.model(self.X.tolist(), self.y.tolist()) == plain
        assert self.model(np.repeat(self.X, 2, axis=0)[::2]) == plain
        assert self.model(self.X, pd.Categorical(self.y)) == plain
        assert self.model(self.X, self.y.astype(object)) == plain
        assert self.model(self.X, (self.y == "yes").astype(np.int8)) == plain
        assert self.model(self.X, self.y == "yes") == plain
        assert self.model(pd.DataFrame(self.X)) == plain

    def test_tables_know_their_names(self):
        names = list("abcde")
        frame = pd.DataFrame(self.X, columns=names)
        arrow = pa.table({name: self.X[:, place] for place, name in enumerate(names)})
        assert self.model(frame) == self.model(arrow, pa.chunked_array([self.y.tolist()]))
        whole = frame.assign(answer=self.y)
        assert self.model(whole, "answer") == self.model(frame)
        assert self.model(pa.Table.from_pandas(whole), "answer") == self.model(frame)
        run = sf.simulate(frame, self.y, clients=2, rounds=2, progress=False)
        with pytest.raises(sf.DataError, match='next "a", found "b"'):
            run.predict(frame[list("bacde")])

    def test_whole_numbers_and_sparse_matrices(self):
        X = (10 * self.X).astype(int)
        assert self.model(X) == self.model(X.astype(float)) == self.model(X.astype(np.int8))
        sparse = self.model(sp.csr_array(X))
        assert sparse == self.model(sp.coo_matrix(X)) == self.model(sp.csc_array(X.astype(float)))
        twice = sp.coo_array(
            (np.r_[X.ravel(), X.ravel()] / 2, (np.tile(np.indices(X.shape).reshape(2, -1), 2))),
            shape=X.shape,
        )
        assert self.model(twice.tocsr()) == sparse

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"X": X[0]}, "two dimensions"),
            ({"X": X[:0], "y": y[:0]}, "at least one row"),
            ({"X": X[:, :0]}, "0 feature"),
            ({"X": np.where(X[3, 2] == X, np.nan, X)}, "`X`: row 3, feature 2: .* found NaN"),
            ({"X": 1e300 * X.astype(float)}, "`X`: row 0, feature 0: .* found"),
            ({"X": X.astype(complex)}, "Complex data not supported"),
            ({"X": X.astype(str)}, "must hold numbers"),
            ({"X": np.full(X.shape, {}, dtype=object)}, "must hold numbers"),
            (
                {"X": pd.DataFrame({"a": X[:, 0], "b": list("xy") * 250})},
                "column 'b': expected numb",
            ),
            ({"X": pd.DataFrame({"a": [1.0, None] * 250})}, "row 1, feature 0"),
            ({"X": pa.table({"a": [1, None] * 250})}, "row 1, feature 0"),
            ({"y": y[:-1]}, "`y` has 499 labels, but there are 500 rows"),
            ({"y": None}, "`y` is missing"),
            ({"y": np.linspace(0, 1, 500)}, "500 different numbers in 500 rows"),
            ({"y": [*range(1, 500), float("nan")]}, "row 499: expected a label, found nan"),
            ({"y": ["a", 1] * 250}, "text alone or numbers alone"),
            ({"y": [None, "a"] * 250}, "text alone or numbers alone"),
            ({"y": "answer"}, "no columns with names"),
            ({"test": X}, "a pair of records and labels|labels, but there are"),
            ({"test": (X[:, :4], y)}, "test: expected 5 features, found 4"),
            ({"test": (X, np.where(y == "yes", "maybe", "no"))}, "known classes .no, yes., found"),
            ({"clients": np.zeros(499, int)}, "`clients` has 499 ids, but there are 500 rows"),
            ({"clients": np.zeros((500, 2))}, "`clients` must be a number"),
            ({"clients": 501}, "at most one client per record"),
        ],
    )
    def test_what_cannot_be_used_is_refused_by_name(self, change, words):
        arguments = {"X": self.X, "y": self.y, **change}
        with pytest.raises(sf.DataError, match=words):
            sf.simulate(**arguments, progress=False)

    def test_records_are_copied(self):
        X = self.X.copy()
        before = self.model(X)
        run = sf.simulate(X, self.y, clients=2, rounds=5, progress=lambda _: X.fill(0.0) or None)
        after = {name: tensor.tobytes() for name, tensor in run.model.items()}
        assert after == before and not X.any()


class TestSettings:
    X, y = records(300)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"epsilon": -1}, r"simulate\(epsilon=...\): `privacy.epsilon` expects a positive"),
            ({"algorithm": "adam"}, r"`algorithm.preset` expects auto | soteriafl-gd"),
            ({"rounds": 2.5}, r"`algorithm.rounds` expects"),
            ({"config": {"privacy.epsilom": 1}}, "did you mean `privacy.epsilon`"),
            ({"config": {"privacy": {"epsilom": 1}}}, "did you mean `privacy.epsilon`"),
            ({"config": {"privacy.epsilon": 1}, "epsilon": 2}, "`epsilon` says otherwise"),
            ({"config": {"data.source": "a9a"}}, "`data.source` names records"),
            ({"config": {"privacy.clip": object()}}, "`privacy.clip` must be a number"),
            ({"config": 3}, "`config` must be a mapping"),
            ({"config": "/nowhere/run.toml"}, "/nowhere/run.toml"),
            ({"seed": -1}, "`run.seed` expects"),
            ({"threads": 0}, "`threads` must be a whole number"),
            ({"clients": 3, "algorithm": "dp-gd"}, "dp-gd has one client"),
            ({"model": "logistic", "clip": None}, "goes with `privacy.epsilon"),
        ],
    )
    def test_what_makes_no_sense_is_refused_by_name(self, arguments, words):
        with pytest.raises(sf.ConfigError, match=words):
            sf.simulate(self.X, self.y, **{"progress": False, **arguments})

    def test_arguments_are_keys(self):
        by_argument = sf.simulate(
            self.X, self.y, clients=3, epsilon=5, delta=1e-6, clip=0.5, rounds=4, seed=2,
            compressor="rand-k", fraction=0.5, progress=False,
        )  # fmt: skip
        keys = {
            "data.clients": 3,
            "privacy": {"epsilon": 5, "delta": 1e-6, "clip": np.float64(0.5)},
            "algorithm": {"rounds": np.int32(4), "compressor": "rand-k", "fraction": 0.5},
            "run.seed": 2,
        }
        by_key = sf.simulate(self.X, self.y, config=keys, progress=False)
        assert by_argument.config == by_key.config
        assert by_argument._native.model == by_key._native.model

    def test_no_noise_claims_nothing(self):
        run = sf.simulate(self.X, self.y, epsilon=None, clients=2, rounds=5, progress=False)
        assert run.privacy.epsilon is None and run.privacy.reason == "no noise"
        assert run.privacy.statement.startswith("No privacy claim: no noise.")
        scaled = sf.simulate(
            self.X, self.y, clients=2, rounds=5, prepared_by_records=True, progress=False
        )
        assert scaled.privacy.epsilon is None
        assert scaled.privacy.reason == "data-dependent scaling"


class TestWatching:
    def test_a_function_sees_every_round_and_may_stop(self):
        X, y = records()
        seen = []
        run = sf.simulate(X, y, test=(X, y), rounds=10, progress=seen.append)
        assert [p.round for p in seen] == list(range(11)) and not run.interrupted
        assert seen[-1].epsilon == run.privacy.epsilon and seen[-1].rounds == 10
        assert seen[-1].test_accuracy == run.test_accuracy
        assert seen[-1].uplink_bytes == run.traffic.uplink_bytes
        stopped = sf.simulate(X, y, rounds=10, progress=lambda p: p.round < 4)
        assert stopped.interrupted and stopped.rounds["round"].tolist() == [0, 1, 2, 3, 4]
        # The claim stays that of the whole schedule.
        assert stopped.privacy.epsilon == run.privacy.epsilon

    def test_what_a_function_raises_ends_the_run(self):
        X, y = records()
        calls = []

        def fail(progress):
            calls.append(progress.round)
            if progress.round == 3:
                raise LookupError("enough")

        with pytest.raises(LookupError, match="enough"):
            sf.simulate(X, y, rounds=1000, progress=fail)
        assert calls == [0, 1, 2, 3]

    def test_ctrl_c_ends_a_run_and_other_threads_go_on(self):
        import _thread

        X, y = records(20000, 20)
        begun, ticks = threading.Event(), []

        def interrupt():
            begun.wait()
            # The run goes on for longer than anybody waits, and keeps this thread from nothing.
            for _ in range(20):
                time.sleep(0.01)
                ticks.append(time.monotonic())
            _thread.interrupt_main()

        thread = threading.Thread(target=interrupt)
        thread.start()
        settings = {"run.eval_every": 0}
        with pytest.raises(KeyboardInterrupt):
            sf.simulate(X, y, rounds=10**8, config=settings, progress=lambda _: begun.set())
        thread.join()
        assert len(ticks) == 20

    def test_lines_without_tqdm(self, capsys, monkeypatch):
        monkeypatch.setitem(sys.modules, "tqdm", None)
        from soteriafl.simulation import _Shown

        shown = _Shown(True)
        shown._began -= 10
        shown._said -= 10
        shown._show(3, 9, 0.5, 0.75, 0.1, 100)
        said = capsys.readouterr().err
        assert said == "round 3 of 9  loss 0.5000  accuracy 0.7500  epsilon 0.1\n"


@functools.cache
def finished():
    X, y = records()
    # Without a map of features the weights are those of the columns.
    plain = {"data.features": "none"}
    return sf.simulate(X, y, test=(X, y), rounds=30, clients=4, config=plain, progress=False)


class TestRun:
    X, y = records()
    run = property(lambda self: finished())

    def test_the_parts(self):
        run = self.run
        assert run.model["weight"].shape == (1, 5) and run.model["bias"].shape == (1,)
        privacy = run.privacy
        assert 0.99 < privacy.epsilon <= 1 and privacy.reason is None and privacy.sigma > 0
        assert "differentially private" in str(privacy) and "replace-one" in privacy.statement
        assert run.rounds["round"].tolist() == list(range(31))
        assert run.rounds["loss"].dtype == float and run.rounds["uplink_bytes"].dtype == int
        assert run.rounds["epsilon"][-1] == privacy.epsilon
        assert run.traffic.uplink_bytes == run.rounds["uplink_bytes"][-1] > 0
        frame = run.to_pandas()
        assert list(frame)[:2] == ["round", "paper_bits"] and len(frame) == 31
        assert "epsilon" in repr(run) and "4 clients" in repr(run)
        page = run._repr_html_()
        assert "<table>" in page and page.rstrip().endswith("</svg>")
        assert run.report().startswith("<!DOCTYPE html>")

    def test_predictions_are_those_that_were_measured(self):
        run = self.run
        predicted = run.predict(self.X)
        assert set(predicted) <= {"no", "yes"}
        assert np.mean(predicted == self.y) == pytest.approx(run.test_accuracy, abs=1e-12)
        chances = run.predict_proba(self.X)
        assert chances.shape == (4000, 2) and np.allclose(chances.sum(axis=1), 1, atol=1e-12)
        # The twin: the logistic function of the file's weights.
        score = self.X @ run.model["weight"][0].astype(float) + run.model["bias"]
        assert np.allclose(chances[:, 1], 1 / (1 + np.exp(-score)), atol=1e-6)
        assert (run.classes[chances.argmax(axis=1)] == predicted).all()
        with pytest.raises(sf.DataError, match="expected 5 features, found 4"):
            run.predict(self.X[:, :4])

    @pytest.mark.parametrize("scale", ["spectral", "standard", "per-feature", "constant"])
    @pytest.mark.parametrize("model", ["softmax", "mlp"])
    def test_models_of_every_kind_predict_what_was_measured(self, tmp_path, scale, model):
        rng = np.random.default_rng(2)
        X = rng.normal(3, 2, (600, 4))
        y = np.array(["a", "b", "c"])[X[:, :3].argmax(axis=1)]
        settings = {"data.scale": scale, "model.hidden": [5]}
        if scale == "constant":
            settings |= {"data.center": 3, "data.factor": 0.5}
        if model == "softmax":
            settings.pop("model.hidden")
        run = sf.simulate(
            X, y, test=(X, y), clients=2, epsilon=None, model=model, rounds=20, config=settings,
            progress=False,
        )  # fmt: skip
        assert np.mean(run.predict(X) == y) == pytest.approx(run.test_accuracy)
        chances = run.predict_proba(X)
        assert (run.classes[chances.argmax(axis=1)] == run.predict(X)).mean() > 0.99
        run.save(tmp_path / "run")
        again = sf.load(tmp_path / "run")
        assert (again.predict(X) == run.predict(X)).all()
        assert (again.classes == run.classes).all()

    def test_what_is_saved_is_loaded_and_read_by_the_program(self, tmp_path):
        run = self.run
        run.save(tmp_path / "run")
        names = sorted(path.name for path in (tmp_path / "run").iterdir())
        assert names == sorted(
            ["config.toml", "rounds.csv", "summary.json", "model.safetensors", "report.html"]
        )
        with pytest.raises(FileExistsError, match="overwrite=True"):
            run.save(tmp_path / "run")
        run.save(tmp_path / "run", overwrite=True)
        again = sf.load(tmp_path / "run")
        for loaded in (again, pickle.loads(pickle.dumps(run))):
            assert loaded.privacy == run.privacy and loaded.config == run.config
            assert loaded.summary == run.summary and loaded.warnings == run.warnings
            assert (loaded.predict(self.X) == run.predict(self.X)).all()
        from safetensors.numpy import load_file

        for name, tensor in load_file(tmp_path / "run" / "model.safetensors").items():
            assert (tensor == run.model[name]).all()
        report = (tmp_path / "run" / "report.html").read_text()
        assert report == run.report()
        subprocess.run([program(), "--quiet", "report", tmp_path / "run"], check=True)
        assert (tmp_path / "run" / "report.html").read_text() == report

    def test_runs_of_the_program_are_read(self, tmp_path):
        out = train(tmp_path, "algorithm.rounds=5", "data.source=synthetic:1000x4")
        run = sf.load(out)
        assert run.summary["dataset"] == "synthetic:1000x4" and len(run.rounds["loss"]) == 6
        assert run.predict(np.zeros((2, 4))).shape == (2,)
        run.save(tmp_path / "copy")
        for name in ["config.toml", "rounds.csv", "summary.json", "model.safetensors"]:
            assert (tmp_path / "copy" / name).read_bytes() == (out / name).read_bytes()

    def test_what_is_no_run_is_refused(self, tmp_path):
        with pytest.raises(OSError, match=r"config\.toml"):
            sf.load(tmp_path / "nothing")
        self.run.save(tmp_path / "run")
        (tmp_path / "run" / "summary.json").write_text("[]")
        with pytest.raises(sf.DataError, match="expected a JSON object"):
            sf.load(tmp_path / "run")

    def test_curves(self):
        import matplotlib

        matplotlib.use("agg")
        ax = self.run.plot("test_accuracy", x="uplink_bytes")
        (line,) = ax.lines
        assert (line.get_xdata() == self.run.rounds["uplink_bytes"]).all()
        assert ax.get_ylabel() == "test accuracy"
        assert len(self.run.plot("loss", "utility", ax=ax).lines) == 3
        with pytest.raises(KeyError, match="no column 'accuracy'"):
            self.run.plot("accuracy")
