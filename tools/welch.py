"""Compare two models by Welch's t test on their scores over seeds, if their translations are not available.

::

    python tools/welch.py 39.51,39.13,39.32 40.69,40.83,39.44 --margin 0.5
"""

import argparse
import sys

import numpy as np

from phmctl.metrics.significance import Scorer, difference


def fixed(scores: str) -> Scorer:
    """Return a scorer that gives these scores to every sample of items, so that only the seeds vary."""
    values = np.array([float(score) for score in scores.split(",")])
    return lambda counts: np.tile(values, (len(counts), 1))  # (B, S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("baseline")
    parser.add_argument("system")
    parser.add_argument("--margin", type=float, default=0.5)
    options = parser.parse_args()
    test = difference(fixed(options.baseline), fixed(options.system), 1, margin=options.margin, samples=100_000)
    change = test.difference
    interval = f"{change.value:+.2f} ({change.low:+.2f} to {change.high:+.2f}), p {test.p_value:.4f}"
    sys.stdout.write(f"{interval}\np of a loss of {options.margin:g}: {test.p_not_inferior:.4f}\n")
