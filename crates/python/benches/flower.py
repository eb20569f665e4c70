"""What SoteriaFL takes of a round over Flower, without Flower's transport and start of processes.

    python benches/flower.py [DIR]

Processor time and elapsed time of questions, answers and what the server does with them. The states
are in DIR (a temporary directory): its disk decides what durability costs.
"""

import statistics
import sys
import tempfile
import time

from soteriafl import _soteriafl as native
from soteriafl.simulation import given_settings

ROUNDS = 8


def silent(lines, warnings):
    """What taking part costs is not what is measured here."""


def play(title, directory, *, source, clients, keep):
    """A whole run in this process; `keep`: states stay open, else every answer opens its own."""
    config = {
        "data.source": source,
        "data.clients": clients,
        "data.partition": "iid",
        "algorithm.preset": "soteriafl-sgd",
        "algorithm.fraction": 0.05,
        "algorithm.batch": 2,
        "algorithm.rounds": ROUNDS,
        "privacy.sigma": 0.05,
        "privacy.clip": 1.0,
        "privacy.accountant": "rdp",
        "privacy.amplification": "off",
    }
    file, settings = given_settings(config, "benchmark")
    server = native.Server(
        file=file,
        settings=settings,
        state=f"{directory}/server",
        out=f"{directory}/run",
        overwrite=False,
        data_dir=None,
        test_seed=7,
    )

    def node(client):
        terms = {
            "client": client,
            "test_seed": 7,
            "max_epsilon": None,
            "max_delta": None,
            "max_read": None,
            "replace_one": False,
            "records_per_person": 1,
            "disjoint_data_sets": False,
            "accept_unknown_cost": True,
            "shape": None,
        }
        holding = native.Holding.source(f"{source}:{client}/{clients}", None)
        return native.Node(f"{directory}/node-{client}", holding, terms, keep)

    kept = [node(client) for client in range(clients)]
    taken = {"agree": [], "answer": [], "server": []}

    def timed(what, call, *arguments):
        elapsed, processor = time.perf_counter(), time.process_time()
        found = call(*arguments)
        taken[what].append((time.perf_counter() - elapsed, time.process_time() - processor))
        return found

    while not server.acknowledged:
        for client in server.missing():
            new = server.client_of(client) is None
            question = server.introduce() if new else timed("server", server.ask, client)
            if question is None:
                continue
            asked = kept[client] if keep else node(client)
            answer = timed("agree" if new else "answer", asked.answer, question, silent)
            timed("server", server.hear, client, answer, 0.0)
    print(f"{title}: {server.about}")
    for what, times in taken.items():
        elapsed, processor = (
            1000 * statistics.median(column) for column in zip(*times, strict=True)
        )
        print(f"  {what:8} {elapsed:9.2f} ms elapsed  {processor:9.2f} ms processor (median)")


def main():
    where = sys.argv[1] if len(sys.argv) > 1 else None
    for title, settings in {
        "states open": {"source": "synthetic:200x50889", "clients": 10, "keep": True},
        "a state per message": {"source": "synthetic:200x50889", "clients": 10, "keep": False},
        "a million parameters": {"source": "synthetic:6x999999", "clients": 3, "keep": False},
    }.items():
        with tempfile.TemporaryDirectory(dir=where) as directory:
            play(title, directory, **settings)


if __name__ == "__main__":
    main()
