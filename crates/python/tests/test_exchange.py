"""Client and Server over a transport of one's own: the bytes of `simulate`, whatever is lost,
repeated or started again; limits; bad bytes."""

import random

import numpy as np
import pytest

import soteriafl as sf

SEED = 7
#: Three clients of unequal size.
RUN = {
    "data.source": "synthetic:61x6",
    "data.clients": 3,
    "data.partition": "iid",
    "algorithm.preset": "soteriafl-sgd",
    "algorithm.fraction": 0.4,
    "algorithm.batch": 5,
    "algorithm.rounds": 7,
    "privacy.sigma": 0.05,
    "privacy.clip": 1.0,
    "privacy.accountant": "rdp",
    "privacy.amplification": "off",
}
#: Two clients with arrays.
OWN = {
    "data.source": "clients",
    "data.clients": 2,
    "deployment.records": 30,
    "deployment.features": ["a", "b", "c"],
    "deployment.labels": ["no", "yes"],
    "algorithm.preset": "soteriafl-gd",
    "algorithm.rounds": 4,
    "privacy.epsilon": 1.0,
    "privacy.delta": 1e-4,
    "privacy.clip": 0.5,
}


def part(folder, number, **settings):
    asked = {
        "client": number,
        "state": folder / f"client-{number}",
        "data": f"synthetic:61x6:{number}/3",
        "max_epsilon": None,
        "accept_unknown_cost": True,
        "test_seed": SEED,
    }
    return sf.Client(**(asked | settings))


def server(folder, config=RUN, test_seed=SEED):
    return sf.Server(
        config, state=folder / "server", out=folder / "run", overwrite=True, test_seed=test_seed
    )


def arrays(number):
    rng = np.random.default_rng(number)
    X = rng.normal(size=(30, 3)).astype(np.float32)
    return X, np.where(X[:, 0] > 0, "yes", "no")


def owner(folder, number, **settings):
    X, y = arrays(number)
    asked = {
        "client": number,
        "state": folder / f"client-{number}",
        "max_epsilon": 2,
        "keep_open": True,
    }
    return sf.Client(X=X, y=y, **(asked | settings))


def carry(coordinator, clients):
    for _ in range(200):
        if coordinator.acknowledged:
            return
        for peer, client in clients.items():
            question = coordinator.question(peer)
            if question is not None:
                coordinator.hear(peer, client.answer(question))
        coordinator.tick()
    raise AssertionError(f"round {coordinator.round}")


def model_bytes(folder):
    return (folder / "run" / "model.safetensors").read_bytes()


def simulated(folder):
    sf.simulate(config=RUN, seed=SEED, progress=False).save(folder / "simulated")
    return (folder / "simulated" / "model.safetensors").read_bytes()


def test_the_bytes_are_those_of_simulate(tmp_path):
    coordinator = server(tmp_path)
    assert (coordinator.rounds, coordinator.clients, coordinator.round) == (7, 3, 0)
    assert coordinator.model == {} and not coordinator.finished
    with pytest.raises(sf.ConfigError, match="round 0 of 7 is open"):
        coordinator.finish()
    carry(coordinator, {10 + number: part(tmp_path, number) for number in range(3)})
    assert [coordinator.client_of(10 + number) for number in range(3)] == [0, 1, 2]
    assert coordinator.finished and coordinator.missing == []
    finished = coordinator.finish()
    assert model_bytes(tmp_path) == simulated(tmp_path)
    assert len(finished.rounds["round"]) == 8


def test_what_is_lost_repeated_or_started_again_changes_nothing(tmp_path):
    coin = random.Random(3)
    coordinator = server(tmp_path)
    peers = {number: part(tmp_path, number) for number in range(3)}
    for _ in range(2000):
        if coordinator.acknowledged:
            break
        peer = coin.randrange(3)
        fate = coin.random()
        if fate < 0.1:
            del coordinator
            coordinator = server(tmp_path)
        elif fate < 0.2:
            peers[peer] = part(tmp_path, peer)
        elif fate < 0.25:
            coordinator.forget(peer)
        question = coordinator.question(peer)
        if question is not None:
            answer = peers[peer].answer(question)
            # Asked once more, it is the same answer.
            assert fate < 0.6 or peers[peer].answer(question) == answer
            for _ in range(0 if fate > 0.8 else 1):
                coordinator.hear(peer, answer)
        coordinator.tick()
    coordinator.finish()
    assert model_bytes(tmp_path) == simulated(tmp_path)


def test_records_in_memory_are_limited_and_proved(tmp_path):
    coordinator = server(tmp_path, OWN, test_seed=None)
    question = coordinator.question(0)
    with pytest.raises(sf.BudgetExceeded, match="max_epsilon"):
        owner(tmp_path, 0, max_epsilon=0.5).answer(question)
    told = []
    clients = {n: owner(tmp_path, n, told=told.extend) for n in range(2)}
    carry(coordinator, clients)
    finished = coordinator.finish()
    assert 0.9 < finished.privacy.epsilon <= 1 and any("epsilon" in line for line in told)
    assert sum(values.size for values in coordinator.model.values()) == 4


def test_bad_input_is_named(tmp_path):
    coordinator = server(tmp_path)
    client = part(tmp_path, 0)
    for bad in (b"", b"nonsense", bytes(1000)):
        with pytest.raises(sf.MessageError):
            client.answer(bad)
    for bad in (b"nonsense", bytes(1000)):
        with pytest.raises(sf.MessageError):
            coordinator.hear(0, bad)
    assert coordinator.hear(0, b"") == ("refused", None)
    question = coordinator.question(0)
    for cut in range(0, len(question), 7):
        with pytest.raises(sf.SoteriaError):
            client.answer(question[:cut])
    answer = client.answer(question)
    assert coordinator.hear(0, answer) == ("joined", 0)
    with pytest.raises(sf.ConfigError, match="`question` must be bytes"):
        client.answer("question")
    with pytest.raises(sf.ConfigError, match="`peer`"):
        coordinator.question(-1)
    with pytest.raises(sf.ConfigError, match="`told`"):
        part(tmp_path, 1, told=3)
    with pytest.raises(sf.DataError, match="give the records once"):
        part(tmp_path, 1, data=None)
    with pytest.raises(sf.ConfigError, match="max_epsilon"):
        part(tmp_path, 1, max_epsilon=-1)


def test_an_asked_client_quotes_no_record(tmp_path):
    (tmp_path / "records.svm").write_text("1 1:0.5\n0 1:patient-7\n")
    asked = sf.Client(
        client=0,
        state=tmp_path / "state",
        data=f"libsvm:{tmp_path / 'records.svm'}",
        max_epsilon=1,
    )
    question = server(tmp_path, OWN, None).question(0)
    with pytest.raises(sf.DataError, match="line 2") as raised:
        asked.answer(question)
    assert "patient-7" not in str(raised.value)


def test_who_is_who_is_the_owners_word(tmp_path):
    """A run that takes a column for persons needs the client's word that it names them."""
    (tmp_path / "run.toml").write_text(
        """
        [data]
        source = "clients"
        clients = 2
        [deployment]
        records = 30
        [algorithm]
        preset = "soteriafl-gd"
        rounds = 4
        [privacy]
        epsilon = 1.0
        delta = 1e-4
        clip = 0.5
        [schema]
        ranges = "public"
        columns = [
            { name = "who", role = "person" },
            { name = "a", kind = "number", range = [0, 1] },
            { name = "sick", role = "label", classes = ["no", "yes"] },
        ]
        """
    )
    (tmp_path / "visits.csv").write_text(
        "who,a,sick\n" + "".join(f"p{i},0.{i % 9},{'no' if i % 2 else 'yes'}\n" for i in range(40))
    )
    question = server(tmp_path, tmp_path / "run.toml", None).question(0)

    def asked(**terms):
        data = f"csv:{tmp_path / 'visits.csv'}"
        return sf.Client(client=0, state=tmp_path / "state", data=data, max_epsilon=2, **terms)

    with pytest.raises(sf.RunRefused, match="`person` says which column"):
        asked().answer(question)
    with pytest.raises(sf.RunRefused, match="`person` says"):
        asked(person="a").answer(question)
    assert asked(person="who").answer(question)
    with pytest.raises(sf.ConfigError, match="`person` must be"):
        asked(person=3)


def test_an_asked_client_hears_what_persons_presume(tmp_path):
    X, y = arrays(0)
    told = []
    asked = sf.Client(client=0, state=tmp_path / "state", X=X, y=y, max_epsilon=2, told=told.extend)
    config = OWN | {"privacy.records_per_person": 2}
    asked.answer(server(tmp_path, config, None).question(0))
    assert any("nobody has more than 2 records" in line for line in told), told
