#!/usr/bin/env python3
"""What a compressed way down saves and costs: bytes both ways for each client and round, and test
accuracy beside that of the same seeds without it. MNIST, the 784-64-10 network, random-k at 5%.

    cargo build --release
    benches/way_down.py target/release/soteria --data-dir datasets

Prints a table in Markdown; `--svg FILE` draws it.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

SETTINGS = [
    "data.source=mnist",
    "data.partition=iid",
    "data.scale=constant",
    "data.center=0.5",
    "data.factor=2",
    "data.features=none",
    "data.basis=none",
    "model.kind=mlp",
    "algorithm.preset=soteriafl-sgd",
    "algorithm.fraction=0.05",
    "algorithm.step_size=1",
    "privacy.clip=1",
    "privacy.delta=1e-3",
    "run.eval_every=0",
]


def train(program: Path, data: str, threads: int, settings: list[str]) -> dict:
    with tempfile.TemporaryDirectory() as directory:
        command = [program, "train", "-q", "--out", f"{directory}/run", "--data-dir", data]
        command += ["--threads", str(threads)]
        command += [part for setting in settings for part in ("--set", setting)]
        subprocess.run(command, check=True)
        return json.loads(Path(directory, "run", "summary.json").read_text())


def draw(path: Path, title: str, rows: list[tuple[str, float, float, float]]) -> None:
    """A bar for each form: bytes up and down for a client and round, and the accuracy."""
    most = max(up + down for _, up, down, _ in rows)
    height = 62 + 34 * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 760 {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#222">',
        f'<rect width="760" height="{height}" fill="#fff"/>',
        f'<text x="14" y="22" font-weight="bold">{title}</text>',
        '<rect x="14" y="34" width="11" height="11" fill="#3566a8"/><text x="30" y="44">up</text>',
        '<rect x="64" y="34" width="11" height="11" fill="#e08a2e"/><text x="80" y="44">down</text>',
    ]
    for at, (form, up, down, accuracy) in enumerate(rows):
        top, scale = 58 + 34 * at, 400 / most
        parts += [
            f'<text x="150" y="{top + 15}" text-anchor="end" font-family="monospace">{form}</text>',
            f'<rect x="160" y="{top}" width="{up * scale:.1f}" height="20" fill="#3566a8"/>',
            f'<rect x="{160 + up * scale:.1f}" y="{top}" width="{down * scale:.1f}" height="20" '
            'fill="#e08a2e"/>',
            f'<text x="{168 + (up + down) * scale:.1f}" y="{top + 15}">'
            f"{(up + down) / 1000:.1f} kB, accuracy {accuracy:.4f}</text>",
        ]
    path.write_text("\n".join([*parts, "</svg>", ""]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("--data-dir", default="datasets")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--epsilon", default="8")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--forms", default="none,sign,rand-k:0.25+sign,rand-k:0.05")
    parser.add_argument("--svg", type=Path)
    chosen = parser.parse_args()
    rows = []
    print("| way down | up | down | both | fewer | accuracy | difference | a round |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    plain: list[float] = []
    dense = 0.0
    for form in chosen.forms.split(","):
        found = []
        for seed in range(chosen.seeds):
            settings = [
                *SETTINGS,
                f"data.clients={chosen.clients}",
                f"algorithm.batch={chosen.batch}",
                f"algorithm.rounds={chosen.rounds}",
                f"algorithm.downlink={form}",
                f"privacy.epsilon={chosen.epsilon}",
                f"run.seed={seed}",
            ]
            found.append(train(chosen.program, chosen.data_dir, chosen.threads, settings))
        messages = chosen.clients * chosen.rounds
        up, down = (
            found[0]["traffic"][key] / messages for key in ("uplink_bytes", "downlink_bytes")
        )
        accuracies = [run["final"]["test_accuracy"] for run in found]
        plain, dense = (plain, dense) if plain else (accuracies, up + down)
        differences = [new - old for new, old in zip(accuracies, plain)]
        error = statistics.stdev(differences) / len(found) ** 0.5 if len(found) > 1 else 0.0
        seconds = statistics.median(run["seconds"]["training"] for run in found)
        print(
            f"| `{form}` | {up:,.0f} B | {down:,.0f} B | {up + down:,.0f} B "
            f"| {dense / (up + down):.1f}x | {statistics.mean(accuracies):.4f} "
            f"| {100 * statistics.mean(differences):+.2f} ± {100 * error:.2f} points "
            f"| {1000 * seconds / chosen.rounds:.1f} ms |",
            flush=True,
        )
        rows.append((form, up, down, statistics.mean(accuracies)))
    if chosen.svg:
        title = f"Bytes for each of {chosen.clients:,} clients and round"
        draw(chosen.svg, title, rows)


if __name__ == "__main__":
    main()
