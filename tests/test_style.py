"""The house rules that a machine can check: import directions, file sizes, no forbidden words, no paths of a machine."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "lifesign"
MAX_LINES = 500

# A room may import the rooms to the right of it (and itself); see DECISIONS.md.
ORDER = ["cli", "drill", "guard", "report", "causes", "remedies", "facts", "logs"]
ALLOWED_EXTRA = {"vllm_plugin": {"guard"}, "drill": {"vllm_plugin"}, "guard": {"vllm_plugin"}, "cli": {"vllm_plugin"}}


def modules() -> list[Path]:
    return sorted(path for path in SRC.rglob("*.py"))


def room_of(path: Path) -> str:
    parts = path.relative_to(SRC).parts
    return parts[0] if len(parts) > 1 else ""


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found.update(name.split(".")[1] for name in names if name.startswith("lifesign.") and name.count(".") >= 1)
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SRC)))
def test_imports_run_one_way(path: Path) -> None:
    room = room_of(path)
    if room == "":
        return
    allowed = set(ORDER[ORDER.index(room) :]) if room in ORDER else {room}
    allowed |= {room, "errors", "text"} | ALLOWED_EXTRA.get(room, set())
    assert imports(path) <= allowed, f"{room} may not import {sorted(imports(path) - allowed)}"


def test_the_import_check_can_fail() -> None:
    assert imports(SRC / "report" / "diagnose.py") - {"logs"} != imports(SRC / "report" / "diagnose.py")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SRC)))
def test_files_open_with_a_docstring_and_stay_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), "say why the file exists"
    assert text.count("\n") <= MAX_LINES, f"over {MAX_LINES} lines: one purpose each?"


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    names = [name for name in listed.stdout.decode().split("\0") if name]
    return [ROOT / name for name in names] or [
        path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts
    ]


def test_no_forbidden_knob_is_recommended() -> None:
    """Names that circulate on the web and never existed; only lint and the pages that warn of them may say them."""
    wrong = re.compile(
        r"--use-deepgemm|engine_rpc_timeout|NCCL_SOCKET_TIMEOUT|VLLM_WATCHDOG_TIMEOUT|--cudagraph_mode|pkill -9 -f vllm"
    )
    for path in (SRC / "causes").glob("*.py"):
        assert not wrong.search(path.read_text(encoding="utf-8")), path
    for path in (SRC / "remedies" / "library").glob("*.py"):
        assert not wrong.search(path.read_text(encoding="utf-8")), path


LOCKING = {"set", "acquire", "notify", "notify_all"}


def locks_in_handlers(source: str) -> set[str]:
    """Calls that take a lock, in functions that are signal handlers or are called by one in the same file.

    A handler runs between two instructions of the main thread; when that one is inside `Event.wait`, it holds the lock
    that `Event.set` asks for, and both wait for good. A plain value or a `SimpleQueue`, whose `put` may be interrupted
    by another `put`, does the same without.
    """
    tree = ast.parse(source)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    todo: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "signal.signal" and len(node.args) == 2:
            todo.append(node.args[1])
    found: set[str] = set()
    seen: set[str] = set()
    while todo:
        part = todo.pop()
        for node in ast.walk(part):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOCKING:
                found.add(ast.unparse(node))
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if name in functions and name not in seen:
                seen.add(name)
                todo.append(functions[name])
    return found


def test_no_signal_handler_waits_for_a_lock() -> None:
    for path in tracked():
        if path.suffix == ".py" and path.exists():
            assert not locks_in_handlers(path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize(
    ("handler", "bad"),
    [
        ("lambda *_: stop.set()", {"stop.set()"}),
        ("on_term", {"self.lock.acquire()"}),
        ("lambda *_: asked.append(1)", set()),
        ("signal.SIG_IGN", set()),
    ],
)
def test_the_lock_check_can_fail(handler: str, bad: set[str]) -> None:
    code = f"def on_term(*_):\n    note()\ndef note():\n    self.lock.acquire()\nsignal.signal(2, {handler})\nother.set()\n"
    assert locks_in_handlers(code) == bad
