"""The client: this node's records, within this node's limits."""

import os

from flwr.app import Context
from soteriafl.flower import Simulated, client_app


def records(context: Context) -> str:
    """What `soteria join --data` would be given; a node's own soteria-data comes before it."""
    own = context.node_config
    return f"a9a:{own['partition-id']}/{own.get('num-partitions', 2)}"


# Nodes of the simulation engine have no configuration of their own. Who owns the machine says that
# it is one, by this variable; without it every node's own configuration counts, and nothing here.
states = os.environ.get("SOTERIA_SIMULATION", "")
app = client_app(records, simulated=Simulated(states, max_epsilon=1.0))
