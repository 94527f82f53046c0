"""The extractor on small source trees, one per generation of vLLM's parser, and its refusal of what it can't follow."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

import catalog_ast  # noqa: E402
import catalog_extract  # noqa: E402
import gen_catalog  # noqa: E402

ENVS = """
import os
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    VLLM_HINT_ONLY: bool = False
    VLLM_SKIP: bool = False
environment_variables = {
    "VLLM_PLAIN": lambda: os.getenv("VLLM_PLAIN"),
    "VLLM_NUMBER": lambda: int(os.getenv("VLLM_NUMBER", "300")),
    "VLLM_SKIP": lambda: os.getenv("VLLM_SKIP", "1") == "1",
    "VLLM_FLAG": lambda: bool(int(os.environ.get("VLLM_FLAG", "0"))),
    "VLLM_SET": lambda: "VLLM_SET" in os.environ,
    "VLLM_CHOICE": env_with_choices("VLLM_CHOICE", "auto", ["auto", "x"]),
    "VLLM_HOME": lambda: os.path.expanduser(os.getenv("VLLM_HOME", "~")),
    "VLLM_DEAD": lambda: os.getenv("VLLM_DEAD", "a").lower(),
}
"""

CONFIG = """
from dataclasses import field
from typing import Literal
from vllm.config.utils import config
Mode = Literal["auto", "fast"]

@config
class PassConfig:
    fuse: bool = False

@config
class GraphConfig:
    mode: Mode = "auto"
    sizes: list[int] | None = None
    passes: PassConfig = field(default_factory=PassConfig)
    computed: int = field(init=False)

@config
class ModelConfig:
    model: str = "m"
    max_len: int | None = None
    share: float = 0.9
    eager: bool = False
    enable_cache: bool | None = None
    graphs: GraphConfig = field(default_factory=GraphConfig)
    mode: Mode = "auto"
    names: list[str] | None = None
    token: bool | str | None = None
"""

UTILS = "def config(cls):\n    return cls\n"

ARGS_HEAD = """
import argparse, sys, dataclasses
from vllm.config import ModelConfig
@dataclasses.dataclass
class EngineArgs:
    model: str = ModelConfig.model
    @staticmethod
    def add_cli_args(parser):
"""

ARGS_TAIL = """
        return parser
@dataclasses.dataclass
class AsyncEngineArgs(EngineArgs):
    log: bool = False
    @staticmethod
    def add_cli_args(parser, async_args_only=False):
        if not async_args_only:
            parser = EngineArgs.add_cli_args(parser)
        current_platform.pre_register_and_update(parser)
        return parser
"""

EXPLICIT = """
        parser.add_argument("--model", type=str, default=EngineArgs.model)
        parser.add_argument("--quantization", "-q", default=None)
        parser.add_argument("--eager", action="store_true")
        parser.add_argument("--graphs", "-O", type=GraphConfig.from_cli, default=None)
        parser.add_argument("--enable-x", action=argparse.BooleanOptionalAction)
"""

KWARGS = """
        kwargs = get_kwargs(ModelConfig)
        group = parser.add_argument_group(title="ModelConfig")
        if not ("serve" in sys.argv[1:] and "--help" in sys.argv[1:]):
            group.add_argument("--model", **kwargs["model"])
        kwargs["max_len"]["type"] = int
        group.add_argument("--max-len", "--maximum", **kwargs["max_len"])
        group.add_argument("--share", **{**kwargs["share"], "default": None})
        group.add_argument("--eager", **kwargs["eager"])
        group.add_argument("--enable-cache", **kwargs["enable_cache"])
        group.add_argument("--graphs", "-g", **kwargs["graphs"])
        group.add_argument("--names", **kwargs["names"])
        for arg in ["one", "two"]:
            group.add_argument(f"--loop-{arg}", type=int, default=1, deprecated=True)
"""

FRONTEND = """
from vllm.config.utils import config
from vllm.engine.arg_utils import AsyncEngineArgs, get_kwargs
@config
class BaseArgs:
    host: str | None = None
    @classmethod
    def _customize(cls, kw):
        return kw
    @classmethod
    def add_cli_args(cls, parser):
        kw = get_kwargs(cls)
        kw = cls._customize(kw)
        for key, value in kw.items():
            extra = value.pop("flags", [])
            parser.add_argument(*extra, f"--{key.replace('_', '-')}", **value)
        return parser
@config
class FrontendArgs(BaseArgs):
    port_number: int = 8000
    @classmethod
    def _customize(cls, kw):
        kw = super()._customize(kw)
        kw["port_number"]["flags"] = ["-p"]
        return kw
def make_arg_parser(parser):
    parser.add_argument("model_tag", nargs="?")
    parser = FrontendArgs.add_cli_args(parser)
    parser = AsyncEngineArgs.add_cli_args(parser)
    return parser
"""

SERVE = """
from vllm.entrypoints.openai.cli_args import make_arg_parser
class ServeSubcommand:
    def subparser_init(self, subparsers):
        serve_parser = subparsers.add_parser("serve")
        serve_parser = make_arg_parser(serve_parser)
        return serve_parser
"""

PAIRING = """
class Pair(BooleanOptionalAction):
    _inverse_prefixes = {"--enable-": "--disable-", "--disable-": "--enable-"}
class FlexibleArgumentParser:
    def __init__(self):
        self.register("action", BooleanOptionalAction, Pair)
"""
ARGUMENT_UTILS = "dataclass_cls = None\n{bool, str, type(None)}\ndef get_kwargs(cls):\n    pass\n"


def tree(folder: Path, body: str, argparse_utils: str = "class FlexibleArgumentParser:\n    pass\n") -> Path:
    """A source tree with `body` inside EngineArgs.add_cli_args."""
    package = folder / "vllm"
    files = {
        "envs.py": ENVS,
        "config/__init__.py": "from vllm.config.model import GraphConfig, ModelConfig, PassConfig\n",
        "config/model.py": CONFIG,
        "config/utils.py": UTILS,
        "engine/arg_utils.py": ARGUMENT_UTILS
        + ARGS_HEAD.replace("ModelConfig\n", "ModelConfig, GraphConfig\n", 1)
        + body
        + ARGS_TAIL,
        "entrypoints/openai/cli_args.py": FRONTEND,
        "entrypoints/cli/serve.py": SERVE,
        "utils/argparse_utils.py": argparse_utils,
        "worker.py": "import vllm.envs as envs\nx = envs.VLLM_NUMBER, envs.VLLM_PLAIN\n",
    }
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in list(package.rglob("*")):
        if path.is_dir() and not (path / "__init__.py").exists():
            (path / "__init__.py").write_text("", encoding="utf-8")
    return package


def strings(release: catalog_extract.Release) -> set[str]:
    return {name for option in release.options for name in [*option.names, *option.negative]}


def by_name(release: catalog_extract.Release) -> dict[str, catalog_extract.Option]:
    return {option.names[0]: option for option in release.options}


def test_variables_their_defaults_and_who_reads_them(tmp_path: Path) -> None:
    release = catalog_extract.extract("1.0", tree(tmp_path, EXPLICIT))
    known = {name: value for name, value in release.env.items() if value is not catalog_ast.UNKNOWN}
    assert known == {
        "VLLM_PLAIN": None, "VLLM_NUMBER": 300, "VLLM_SKIP": True, "VLLM_FLAG": False, "VLLM_SET": False,
        "VLLM_CHOICE": "auto", "VLLM_DEAD": "a",
    }  # fmt: skip
    assert "VLLM_HINT_ONLY" not in release.env
    assert release.env["VLLM_HOME"] is catalog_ast.UNKNOWN
    assert set(release.env) - release.unread == {"VLLM_PLAIN", "VLLM_NUMBER"}


def test_first_generation_explicit_arguments(tmp_path: Path) -> None:
    release = catalog_extract.extract("1.0", tree(tmp_path, EXPLICIT))
    assert release.unhandled == []
    assert strings(release) == {
        "-h", "--help", "--host", "-p", "--port-number", "--model", "--quantization", "-q", "--eager", "--graphs", "-O", "--enable-x",
        "--no-enable-x",
    }  # fmt: skip
    options = by_name(release)
    assert options["--eager"].type == "flag"
    assert options["--model"].default == "m"
    assert (options["--graphs"].type, options["--graphs"].json) == ("json", "GraphConfig")
    assert release.json_keys["GraphConfig"] == {"mode": "", "sizes": "", "passes": "PassConfig"}
    assert release.json_keys["PassConfig"] == {"fuse": ""}
    assert release.engine_args == {"model", "log"}


def test_second_generation_get_kwargs(tmp_path: Path) -> None:
    release = catalog_extract.extract("1.0", tree(tmp_path, KWARGS))
    assert release.unhandled == []
    options = by_name(release)
    assert {"--model", "--max-len", "--share", "--eager", "--loop-one", "--loop-two", "--graphs", "--names"} <= set(
        options
    )
    assert "--no-eager" in strings(release)
    assert "--no-graphs" not in strings(release)
    assert options["--max-len"].names == ["--max-len", "--maximum"]
    assert (options["--share"].type, options["--share"].default) == ("float", None)
    assert (options["--names"].type, options["--graphs"].json) == ("str+", "GraphConfig")
    assert options["--loop-one"].deprecated


def test_third_generation_paired_names(tmp_path: Path) -> None:
    release = catalog_extract.extract("1.0", tree(tmp_path, KWARGS, PAIRING))
    assert {"--enable-cache", "--no-enable-cache", "--disable-cache"} <= strings(release)
    plain = catalog_extract.extract("1.0", tree(tmp_path / "plain", KWARGS))
    assert "--disable-cache" not in strings(plain)


@pytest.mark.parametrize(
    "body",
    [
        "        for name in unknown_names():\n            parser.add_argument(name)\n",
        "        parser.add_argument(computed_name())\n",
        "        parser.add_argument('--x', **mystery)\n",
        "        while more():\n            parser.add_argument('--y')\n",
        "        kwargs = get_kwargs(NoSuchConfig)\n",
    ],
)
def test_what_it_can_not_follow_it_refuses(tmp_path: Path, body: str) -> None:
    release = catalog_extract.extract("9.9", tree(tmp_path, body))
    assert release.unhandled
    with pytest.raises(gen_catalog.CatalogError, match=r"9\.9"):
        gen_catalog.record(release)


def test_another_replacement_of_the_boolean_action_is_refused(tmp_path: Path) -> None:
    other = PAIRING.replace("_inverse_prefixes", "_something_else")
    release = catalog_extract.extract("9.9", tree(tmp_path, KWARGS, other))
    assert any("BooleanOptionalAction" in text for text in release.unhandled)


# -- intervals ---------------------------------------------------------------------------------------------------------

RELEASES = ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("here", "text"),
    [
        ([True] * 4, "*"),
        ([False] * 4, ""),
        ([True, True, False, False], "-2"),
        ([False, True, True, True], "2-"),
        ([False, True, False, True], "2-2,4-"),
    ],
)
def test_ranges_and_back(here: list[bool], text: str) -> None:
    assert gen_catalog.ranges(here, RELEASES) == text
    assert gen_catalog.present(text, RELEASES) == here


def test_the_shipped_file_is_a_fixed_point() -> None:
    """Decoding it and writing it again gives the same bytes: nothing in it was edited by hand."""
    text = gen_catalog.OUTPUT.read_text(encoding="utf-8")
    records = gen_catalog.unfold(json.loads(text))
    assert gen_catalog.render(gen_catalog.fold(records)) == text
    assert gen_catalog.assemble(records) == text


def test_lookups_agree_with_the_decoded_file() -> None:
    """The package's own reader and the generator's decoder see the same options in each release."""
    from lifesign.remedies.catalog import load

    catalog = load()
    for release, record in gen_catalog.unfold(json.loads(gen_catalog.OUTPUT.read_text(encoding="utf-8"))).items():
        expected = gen_catalog.option_strings(record)
        assert set(catalog.option_names(release)) == set(expected)
        assert set(catalog.env_names(release)) == set(record["env"])
        assert set(catalog.argument_names(release)) == set(record["args"])
        for name, takes_value in expected.items():
            knob = catalog.option(name, release)
            assert knob is not None
            assert knob.takes_value == takes_value, (release, name)


def test_a_lost_name_or_a_jump_in_numbers_stops_the_generator() -> None:
    records = gen_catalog.unfold(json.loads(gen_catalog.OUTPUT.read_text(encoding="utf-8")))
    good, before = records["0.32.0"], records["0.31.0"]
    gen_catalog.verify("0.32.0", good, before)
    lost = {**good, "options": {name: entry for name, entry in good["options"].items() if name != "--max-num-seqs"}}
    with pytest.raises(gen_catalog.CatalogError, match="--max-num-seqs"):
        gen_catalog.verify("0.32.0", lost, before)
    few: dict[str, Any] = {
        **good,
        "env": dict(list(good["env"].items())[:200]) | {name: {} for name in gen_catalog.SENTINEL_ENV},
    }
    with pytest.raises(gen_catalog.CatalogError, match="compare with the real parser"):
        gen_catalog.verify("0.32.0", few, before)
