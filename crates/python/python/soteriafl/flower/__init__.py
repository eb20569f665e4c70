"""SoteriaFL on Flower: clients with a budget of their own, and runs that survive every process.

A client app and a server app are a few lines each (`examples/flower` has them whole, docs/flower.md
says what each side trusts)::

    from soteriafl.flower import client_app
    app = client_app(lambda context: "csv:/data/patients.csv")

    from flwr.serverapp import ServerApp
    from soteriafl.flower import SoteriaStrategy
    app = ServerApp()

    @app.main()
    def main(grid, context):
        strategy = SoteriaStrategy(context.run_config, state="state", out="run")
        strategy.start(grid)

What a node's records may cost, and where its state lives, are the node's own configuration, as in
``flower-supernode --node-config 'partition-id=0 max-epsilon=2.0 soteria-state="/var/soteria"'``.
"""

from .client import Problem, Simulated, answer, client_app
from .strategy import SoteriaStrategy

__all__ = ["Problem", "Simulated", "SoteriaStrategy", "answer", "client_app"]
