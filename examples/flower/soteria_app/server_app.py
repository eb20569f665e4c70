"""The server: one run, coordinated to its end, and its directory with the report."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from soteriafl.flower import SoteriaStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Goes on where an earlier process stopped that had the same state."""
    config = context.run_config
    strategy = SoteriaStrategy(config, state=config["state"], out=config["out"])
    strategy.start(grid)
    print(strategy.run())
