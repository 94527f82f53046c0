#!/usr/bin/env python3
"""How long the knob catalog takes to load and to answer, and that a run that needs none of it pays nothing.

    python bench/catalog_load.py [--runs 20]

Each sample is a fresh interpreter: what is measured is the first load of a process (import of the reader, decoding of the
file, one lookup), after the imports that a diagnosis has made by then (the command line, msgspec, the model of facts). Prints medians.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

COLD = """
import time, msgspec, lifesign.cli.main, lifesign.facts.model
began = time.perf_counter()
from lifesign.remedies.catalog import load
loaded = time.perf_counter()
catalog = load()
decoded = time.perf_counter()
assert catalog.option("--max-num-seqs", "0.11.0") is not None
assert catalog.env("VLLM_RPC_TIMEOUT", "0.11.0").unread
print(1e3 * (loaded - began), 1e3 * (decoded - loaded), 1e3 * (time.perf_counter() - decoded))
"""
UNUSED = """
import sys
import lifesign.cli.main
print(int("lifesign.remedies.catalog" in sys.modules), int("lifesign.remedies.known_issues" in sys.modules))
"""


def sample(code: str) -> list[float]:
    """The numbers that a fresh interpreter prints for `code`."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return [float(word) for word in done.stdout.split()]


def main() -> None:
    """Print the medians in milliseconds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    sample(COLD)
    samples = [sample(COLD) for _ in range(runs)]
    for name, values in zip(("import", "decode", "two lookups"), zip(*samples, strict=True), strict=True):
        print(f"{name:<12} {statistics.median(values):6.2f} ms   (best {min(values):.2f}, worst {max(values):.2f})")
    print(f"{'together':<12} {statistics.median(map(sum, samples)):6.2f} ms   of {runs} fresh interpreters")
    catalog, issues = sample(UNUSED)
    print(f"loaded by a run that needs none: catalog {bool(catalog)}, known issues {bool(issues)}")


if __name__ == "__main__":
    main()
