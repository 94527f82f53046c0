"""Starts of vLLM in Python: `LLM(...)` and engine-args classes with their keyword arguments, commands that it runs
(`subprocess`, `os.system`), and `os.environ` settings.

Parsed as a syntax tree; nothing is imported or run.
"""

from __future__ import annotations

import ast

from lifesign.errors import SourceError
from lifesign.remedies.lint.commands import script, starts
from lifesign.remedies.lint.model import Invocation, Setting, Word

_CLASSES = ("LLM", "AsyncLLM", "EngineArgs", "AsyncEngineArgs", "AsyncLLMEngine", "LLMEngine")


def read(text: str, path: str) -> list[Invocation]:
    """The invocations of a Python text. Raises SourceError when it doesn't parse."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise SourceError(path, "isn't valid Python: correct it and run lint again", line) from None
    settings: list[Setting] = []
    calls: list[Invocation] = []
    commands: list[Invocation] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            settings += [found for target in node.targets if (found := _environ(target, node.value)) is not None]
        elif isinstance(node, ast.List):
            commands += starts([_word(item) for item in node.elts[:2000]], path) if node.elts else []
        elif isinstance(node, ast.Call):
            commands += _shell_call(node, path)
            found = _call(node)
            if found is not None:
                settings.append(found)
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in _CLASSES and any(keyword.arg for keyword in node.keywords):
                arguments = [
                    Setting(
                        keyword.arg, _text(keyword.value), keyword.value.lineno, isinstance(keyword.value, ast.Constant)
                    )
                    for keyword in node.keywords
                    if keyword.arg
                ]
                calls.append(Invocation(path, node.lineno, arguments=arguments))
    settings.sort(key=lambda setting: setting.line)
    calls += commands
    if not calls:
        return [Invocation(path, settings[0].line, settings=settings, complete=False)] if settings else []
    calls[0].settings = settings
    return calls


def _word(node: ast.expr) -> Word:
    """A member of a command's list; what isn't a text stays open."""
    literal = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return Word(_text(node) if literal else "$", node.lineno, literal)


def _shell_call(node: ast.Call, path: str) -> list[Invocation]:
    """`os.system("vllm serve ...")`, and `subprocess` given its command as one text."""
    name = ast.unparse(node.func) if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if not (name in ("os.system", "os.popen", "Popen", "run") or name.startswith("subprocess.")) or not node.args:
        return []
    text = node.args[0]
    if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
        return []
    return [found for found in script(text.value, path, text.lineno) if found.words]


def _text(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ""


def _environ(target: ast.expr, value: ast.expr) -> Setting | None:
    """`os.environ["NAME"] = value`."""
    if not isinstance(target, ast.Subscript) or not ast.unparse(target.value).endswith("environ"):
        return None
    name = target.slice
    if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
        return None
    return Setting(name.value, _text(value), target.lineno, isinstance(value, ast.Constant))


def _call(node: ast.Call) -> Setting | None:
    """`os.environ.setdefault("NAME", value)` and `os.putenv`."""
    text = ast.unparse(node.func) if isinstance(node.func, ast.Attribute) else ""
    if not text.endswith(("environ.setdefault", "os.putenv")) or len(node.args) != 2:
        return None
    name = node.args[0]
    if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
        return None
    return Setting(name.value, _text(node.args[1]), node.lineno, isinstance(node.args[1], ast.Constant))
