"""The table of docs/performance.md for layers: ``PHMLinear`` against ``nn.Linear`` on this processor, in markdown.

::

    OMP_NUM_THREADS=2 python tools/layer_table.py
"""

import argparse
import sys
from collections.abc import Sequence

from phmctl.benchmarks.layers import bench_layer

SHAPES = ((256, 256), (512, 512), (512, 2048), (1024, 1024), (1024, 4096), (2048, 2048))
RULES: tuple[tuple[int, int | None], ...] = ((4, None), (4, 4), (8, 12))  # n, and R of the factors or None for A
TOKENS = (512, 4096)


def markdown(
    shapes: Sequence[tuple[int, int]] = SHAPES, tokens: Sequence[int] = TOKENS, *, rounds: int = 9
) -> tuple[str, str]:
    """Return the processor and the table of measured ratios: median (minimum–maximum) of the rounds."""
    columns = [(count, mode) for count in tokens for mode in ("forward+backward", "forward")]
    lines = [
        "| d → k | n | rule | execution | " + " | ".join(f"{mode}, {count} tokens" for count, mode in columns) + " |"
    ]
    lines.append("|" + "---|" * (4 + len(columns)))
    processor = ""
    for (d, k), (n, rank) in ((shape, rule) for shape in shapes for rule in RULES):
        bench = bench_layer(d, k, [n], tokens, rank=rank, rounds=rounds)
        processor = f"{bench.about['processor']}, {bench.about['threads']} threads, torch {bench.about['torch']}"
        for execution in dict.fromkeys(row["execution"] for row in bench.rows):
            ratios = {(row["tokens"], row["mode"]): row["ratio"] for row in bench.rows if row["execution"] == execution}
            rule = "A" if rank is None else f"R = {rank}"
            cells = " | ".join(str(ratios[column]) for column in columns)
            lines.append(f"| {d} → {k} | {n} | {rule} | {execution} | {cells} |")
    return processor, "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    processor, table = markdown(rounds=parser.parse_args().rounds)
    sys.stdout.write(f"{processor}\n\n{table}")


if __name__ == "__main__":
    main()
