"""What the installed vLLM itself says: option strings of `vllm serve`, environment variables, config fields, as JSON.

Run it with the interpreter of a vLLM environment, not with lifesign's: it imports vllm and builds the real parser.
gen_catalog.py and the tests compare its answer with the catalog, set by set.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import Any


def main() -> None:
    """Print one JSON object on the last line of stdout."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    sys.argv = ["vllm", "serve", "model"]
    import vllm.config
    import vllm.envs
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli.serve import ServeSubcommand

    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser

    root = FlexibleArgumentParser(prog="vllm")
    serve = ServeSubcommand().subparser_init(root.add_subparsers(required=False, dest="subparser"))
    options = {}
    for name, action in serve._option_string_actions.items():
        options[name] = {"takes_value": action.nargs != 0, "default": _plain(action.default)}
    configs = {}
    for name in dir(vllm.config):
        value = getattr(vllm.config, name)
        if isinstance(value, type) and dataclasses.is_dataclass(value):
            configs[name] = sorted(field.name for field in dataclasses.fields(value) if field.init)
    answer = {
        "version": getattr(__import__("vllm"), "__version__", ""),
        "options": options,
        "env": sorted(vllm.envs.environment_variables),
        "env_defaults": {name: _env_default(vllm.envs, name) for name in vllm.envs.environment_variables},
        "configs": configs,
        "engine_args": sorted(field.name for field in dataclasses.fields(AsyncEngineArgs)),
    }
    print(json.dumps(answer, sort_keys=True))


def _plain(value: Any) -> Any:
    """A JSON value, or a mark that says that it is none."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return f"<{type(value).__name__}>"


def _env_default(envs: Any, name: str) -> Any:
    kept = os.environ.pop(name, None)
    try:
        return _plain(envs.environment_variables[name]())
    except Exception as error:  # a variable's reader may fail on this machine; that is an answer too
        return f"<{type(error).__name__}>"
    finally:
        if kept is not None:
            os.environ[name] = kept


if __name__ == "__main__":
    main()
