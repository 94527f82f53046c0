"""`python -m lifesign.drill.fake`: run a fake engine in the foreground (and, by itself, its child processes)."""

from __future__ import annotations

import argparse
import os
import sys

from lifesign.drill.fake.dialect import DEFAULT_RELEASE, RELEASES
from lifesign.drill.fake.process import Settings


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lifesign.drill.fake", description="A stand-in for a vLLM server.")
    parser.add_argument("model", nargs="?", default="/srv/model", help="the name to serve")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--release", choices=sorted(RELEASES), default=DEFAULT_RELEASE, help="whose log to imitate")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--max-num-seqs", type=int, default=4)
    parser.add_argument("--rpc-timeout-s", type=float, default=300.0, help="limit of one call to the workers")
    parser.add_argument("--step-s", type=float, default=0.02, help="how long a step takes")
    parser.add_argument("--patient", action="store_true", help="look at the worker before giving it up")
    for hidden in ("--role", "--settings"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    for number in ("--fd", "--rank"):
        parser.add_argument(number, type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Dispatch to one of the three roles."""
    args = _parse(argv)
    if args.role == "worker":
        from lifesign.drill.fake import worker

        return worker.main(Settings.parse(args.settings), args.rank, args.fd)
    if args.role == "core":
        from lifesign.drill.fake import core

        return core.main(Settings.parse(args.settings), args.fd)
    from lifesign.drill.fake import api

    limit_s = float(os.environ.get("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS") or args.rpc_timeout_s)
    patient = args.patient or os.environ.get("LIFESIGN_PATIENCE") == "1"
    settings = Settings(
        args.release, args.port, args.model, args.workers, args.max_num_seqs, limit_s, args.step_s, patient
    )
    return api.main(settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
