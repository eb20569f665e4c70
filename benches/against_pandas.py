#!/usr/bin/env python3
"""Reading tables: this project's readers against pandas, in one run, one thread each.

    cargo bench -p soteriafl-data --bench reading --no-run
    python3 benches/against_pandas.py target/release/deps/reading-*   (needs pandas and pyarrow)

Files are made in a temporary folder: 500,000 rows of numbers, and as many with categories, dates
and gaps, which are read through the schema that the program drafts.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

ROWS = 500_000


def tables():
    rng = np.random.default_rng(0)
    numbers = {f"x{i}": rng.normal(0, 10, ROWS).round(4) for i in range(16)}
    numbers |= {f"n{i}": rng.integers(0, 1000, ROWS) for i in range(4)}
    label = np.array(["no", "yes"])[rng.integers(0, 2, ROWS)]
    yield "numbers", pd.DataFrame(numbers | {"label": label})
    mixed = {f"x{i}": rng.normal(0, 10, ROWS).round(4) for i in range(8)}
    mixed["x0"][rng.random(ROWS) < 0.1] = np.nan
    mixed |= {f"c{i}": np.array(list("abcdef"))[rng.integers(0, 6, ROWS)] for i in range(4)}
    days = rng.integers(0, 20_000, ROWS).astype("datetime64[D]")
    mixed["day"] = pd.Series(days).dt.date
    yield "mixed", pd.DataFrame(mixed | {"label": label})


def best(read):
    times = []
    for _ in range(3):
        start = time.perf_counter()
        read()
        times.append(time.perf_counter() - start)
    return min(times)


def ours(program, *arguments):
    run = subprocess.run([program, *arguments], check=True, capture_output=True, text=True)
    return float(run.stdout.split()[0])


def main():
    program = sys.argv[1]
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    print(f"{'table':10}{'file':10}{'MB':>8}{'ours s':>9}{'MB/s':>8}{'pandas s':>10}{'ratio':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for name, table in tables():
            csv, parquet = Path(folder, f"{name}.csv"), Path(folder, f"{name}.parquet")
            table.to_csv(csv, index=False)
            table.to_parquet(parquet)
            schema = ["--schema"] if name == "mixed" else []
            for file, read in [(csv, pd.read_csv), (parquet, pd.read_parquet)]:
                seconds = ours(program, *schema, f"{file.suffix[1:]}:{file}")
                theirs = best(lambda file=file, read=read: read(file))
                size = os.path.getsize(file) / 1e6
                print(
                    f"{name:10}{file.suffix[1:]:10}{size:8.1f}{seconds:9.3f}{size / seconds:8.0f}"
                    f"{theirs:10.3f}{seconds / theirs:7.2f}"
                )


if __name__ == "__main__":
    main()
