"""Run by test_plugin_rings.py with an engine's interpreter: are the series on vLLM's page, with one API server and with several?"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from prometheus_client import generate_latest

from lifesign.guard.detector.beacon import BeaconWriter, beacon_dir
from lifesign.vllm_plugin.metrics import publish

SERIES = "lifesign_steps_started_total"


def main() -> None:
    if sys.argv[1] == "several":
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp(dir=os.environ["TMPDIR"])
    publish()
    from vllm.v1.metrics import prometheus

    beacon = BeaconWriter("cpu", Path(beacon_dir()))
    beacon.step_started(3, 5)
    page = generate_latest(prometheus.get_prometheus_registry()).decode()
    again = generate_latest(prometheus.get_prometheus_registry()).decode()
    beacon.close()
    found = [line for line in page.splitlines() if line.startswith(SERIES)]
    print(json.dumps({"found": found, "twice": sum(line.startswith(SERIES) for line in again.splitlines())}))


main()
