#!/usr/bin/env python3
"""The figure of docs/table1.md, for a slide: the curves of `soteria compare --algorithms
table1,successors` coloured by what a row sends and whom it trusts, instead of one colour each.

    benches/table1_figure.py table1/overview.svg > docs/images/table1.svg

Curves, axes and ticks stay as the program drew them.
"""

import re
import sys
from pathlib import Path

# Colour, dashes, and the rows; the first one of each is drawn thick.
FAMILIES = {
    "compressed and shifted (SoteriaFL)": (
        "#c2410c",
        "",
        ["soteriafl-gd", "soteriafl-sgd", "soteriafl-svrg", "soteriafl-saga", "soteriafl-sag"],
    ),
    "compressed, not shifted": ("#15803d", "", ["cdp-sgd", "sdm-dsgd", "porter"]),
    "whole messages": (
        "#1d4ed8",
        "",
        ["ldp-spider", "ldp-svrg", "ldp-srm", "diff2", "q-dpsgd-1"],
    ),
    "trusts one node, or whoever adds up": (
        "#64748b",
        "5 4",
        ["dp-gd", "dp-sgd", "dp-srm", "rrpsgd", "distributed-dp-srm"],
    ),
}
# How far apart ends of curves are that get a name.
APART = 13


def style(name: str) -> tuple[str, str, bool]:
    for colour, dashes, rows in FAMILIES.values():
        if name in rows:
            return colour, dashes, name == rows[0]
    raise SystemExit(f"{name}: not in a family")


def curve(path: str, name: str) -> str:
    colour, dashes, first = style(name)
    width, opacity = ("3.2", "1") if first else ("1.7", "0.6")
    dash = f' stroke-dasharray="{dashes}"' if dashes else ""
    look = f'stroke="{colour}" stroke-width="{width}" stroke-opacity="{opacity}"{dash}'
    return f'<path d="{path}" {look} stroke-linejoin="round"/>'


def end(path: str) -> tuple[float, float]:
    x, y = re.findall(r"([\d.]+) ([\d.]+)", path)[-1]
    return float(x), float(y)


def names_at_ends(curves: list[tuple[str, str]]) -> list[str]:
    """Names for curves that end alone, in the first panel, where all end at the right; of those that
    end together nobody could read them."""
    ends = [(*end(path), name) for path, name in curves]
    lines = []
    for x, y, name in ends:
        near = [other for a, b, other in ends if abs(b - y) < APART and abs(a - x) < 60]
        if near == [name]:
            lines.append(
                f'<text x="{x - 4:.1f}" y="{y - 6:.1f}" text-anchor="end" font-size="11.5" '
                f'fill="{style(name)[0]}" stroke="#fff" stroke-width="3" '
                f'paint-order="stroke">{name}</text>'
            )
    return lines


def legend(width: float) -> list[str]:
    lines, x = [], width / 2 - 540
    for family, (colour, dashes, rows) in FAMILIES.items():
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        lines.append(f'<path d="M{x:.1f} 70h26" stroke="{colour}" stroke-width="3"{dash}/>')
        lines.append(f'<text x="{x + 34:.1f}" y="74.5" font-size="14">{family}</text>')
        thick = f"thick: {rows[0]}"
        lines.append(
            f'<text x="{x + 34:.1f}" y="90" font-size="11.5" fill="#667085">{thick}</text>'
        )
        x += 78 + 7.2 * len(family)
    return lines


def main() -> None:
    source = Path(sys.argv[1]).read_text()
    width = float(re.search(r'width="(\d+)"', source)[1])
    named = r'<path d="M[\d.]+ [\d.]+h22" stroke="([^"]+)"[^>]*/>\s*<text [^>]*>([^<]+)</text>'
    # Rows that send nothing are in one panel only.
    row_of = dict(re.findall(named, source))
    source = re.sub(named, "", source)

    def panel(group: re.Match) -> str:
        paths = re.findall(r'<path d="([^"]+)" stroke="([^"]+)"', group[2])
        curves = [(path, row_of[colour]) for path, colour in paths]
        # Thick ones on top.
        drawn = sorted(curves, key=lambda pair: style(pair[1])[2])
        named = names_at_ends(curves) if "panel-0" in group[1] else []
        return "\n".join([group[1], *(curve(*pair) for pair in drawn), "</g>", *named])

    source = re.sub(r'(<g clip-path="[^"]+" fill="none">)(.*?)</g>', panel, source, flags=re.DOTALL)
    title = "Every row of Table 1 at the same ε = 1: ten clients, a9a sorted by label"
    source = re.sub(r">a9a on 10 clients<", f">{title}<", source)
    source = source.replace("</svg>", "\n".join([*legend(width), "</svg>"]))
    print(re.sub(r"\n\n+", "\n", source), end="")


if __name__ == "__main__":
    main()
