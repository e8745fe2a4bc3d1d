"""Welch's t test of two models by their scores over seeds, for trainings whose translations are not kept.

::

    python tools/welch.py 39.51,39.13,39.32 40.69,40.83,39.44 --margin 0.5
"""

import argparse
import sys

import numpy as np

from phmctl.metrics.significance import Scorer, difference


def fixed(scores: str) -> Scorer:
    """Score every sample of the items alike: the seeds are all that varies."""
    values = np.array([float(each) for each in scores.split(",")])
    return lambda counts: np.tile(values, (len(counts), 1))  # (B, S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("baseline")
    parser.add_argument("system")
    parser.add_argument("--margin", type=float, default=0.5)
    asked = parser.parse_args()
    found = difference(fixed(asked.baseline), fixed(asked.system), 1, margin=asked.margin, samples=100_000)
    change = found.difference
    interval = f"{change.value:+.2f} ({change.low:+.2f} to {change.high:+.2f}), p {found.p_value:.4f}"
    sys.stdout.write(f"{interval}\np of a loss of {asked.margin:g}: {found.p_not_inferior:.4f}\n")
