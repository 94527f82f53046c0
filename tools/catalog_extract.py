"""What one vLLM release knows: environment variables, options of `vllm serve`, JSON keys, EngineArgs, read from its AST.

The option parser is built by code (`make_arg_parser`, `X.add_cli_args(parser)`, loops over dataclass fields), so this
is a small interpreter of exactly the statements that such code consists of. A statement that adds options and isn't
understood lands in `unhandled`; the generator refuses to write a catalog while that list isn't empty.

Standard library only; used by gen_catalog.py.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from catalog_ast import UNKNOWN, Module, Tree, note_import

PARSER = object()
"""Stands for a parser or an argument group."""
ARGV = ["vllm", "serve", "model"]
"""The command line under which conditions on sys.argv are read."""
BOOLEAN = "BooleanOptionalAction"
MAX_CALLS = 60


@dataclass
class Option:
    """One option of the parser. names: as registered. negative: forms that mean the opposite. type: `flag` (no value),
    `bool` (with a negative form), `json`, `int`, `float`, `str`, or with `?`, `+`, `*` appended for optional or several
    values. json: the config class whose fields are its keys."""

    names: list[str]
    type: str
    negative: list[str] = field(default_factory=list)
    default: Any = UNKNOWN
    json: str = ""
    choices: list[Any] = field(default_factory=list)
    deprecated: bool = False


@dataclass
class Release:
    """Everything extracted from one release."""

    version: str
    env: dict[str, Any] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    options: list[Option] = field(default_factory=list)
    json_keys: dict[str, dict[str, str]] = field(default_factory=dict)
    engine_args: set[str] = field(default_factory=set)
    unhandled: list[str] = field(default_factory=list)


def extract(version: str, package: Path) -> Release:
    """Read one release from the folder that holds its `vllm` package."""
    tree = Tree(package)
    release = Release(version)
    _extract_env(tree, release)
    reader = _Parser(tree, release)
    reader.run()
    _extract_json(tree, release, reader.json_classes)
    arguments = tree.module("vllm.engine.arg_utils")
    found = tree.resolve("AsyncEngineArgs", arguments) if arguments is not None else None
    if found is not None and isinstance(found[0], ast.ClassDef):
        release.engine_args = set(tree.fields(found[0], found[1]))
    return release


# -- environment variables ---------------------------------------------------------------------------------------------


def _extract_env(tree: Tree, release: Release) -> None:
    module = tree.module("vllm.envs")
    node = module.defs.get("environment_variables") if module is not None else None
    value = getattr(node, "value", None)
    if module is None or not isinstance(value, ast.Dict):
        release.unhandled.append("envs.py: environment_variables is no dict literal")
        return
    for key, item in zip(value.keys, value.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            release.unhandled.append(f"envs.py: a key of environment_variables is no text: {ast.unparse(item)[:80]}")
            continue
        release.env[key.value] = _env_default(item)
    release.unread = set(release.env) - _names_read(tree.package)


def _names_read(package: Path) -> set[str]:
    """Names that occur in any .py file but vllm/envs.py, in the spelling of a variable."""
    pattern = re.compile(r"\b[A-Z][A-Z0-9_]{3,80}\b")
    found: set[str] = set()
    for path in package.rglob("*.py"):
        if path != package / "envs.py":
            found.update(pattern.findall(path.read_text(encoding="utf-8", errors="replace")))
    return found


def _env_default(node: ast.expr) -> Any:
    """The value of a variable's reader when nothing is set in the environment; UNKNOWN if it can't be worked out."""
    if isinstance(node, ast.Lambda):
        return _evaluate(node.body)
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", "")
        if name in ("env_with_choices", "env_list_with_choices", "env_set_with_choices") and len(node.args) >= 2:
            return _evaluate(node.args[1])
        if name == "deprecated_env" and len(node.args) >= 1:
            return _env_default(node.args[-1]) if isinstance(node.args[-1], ast.Lambda) else UNKNOWN
    return UNKNOWN


def _evaluate(node: ast.expr) -> Any:
    """Evaluate the small expressions of envs.py with an empty environment. No call leaves the list below."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        items = [_evaluate(item) for item in node.elts]
        return UNKNOWN if any(item is UNKNOWN for item in items) else items
    if isinstance(node, ast.IfExp):
        test = _evaluate(node.test)
        return UNKNOWN if test is UNKNOWN else _evaluate(node.body if test else node.orelse)
    if isinstance(node, ast.BoolOp):
        result: Any = UNKNOWN
        for item in node.values:
            result = _evaluate(item)
            if result is UNKNOWN or bool(result) == isinstance(node.op, ast.Or):
                return result
        return result
    if isinstance(node, ast.UnaryOp):
        inner = _evaluate(node.operand)
        if inner is UNKNOWN:
            return UNKNOWN
        return not inner if isinstance(node.op, ast.Not) else -inner if isinstance(node.op, ast.USub) else UNKNOWN
    if isinstance(node, ast.BinOp):
        left, right = _evaluate(node.left), _evaluate(node.right)
        numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
        return left * right if numbers and isinstance(node.op, ast.Mult) else UNKNOWN
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _compare(node)
    if isinstance(node, ast.Call):
        return _evaluate_call(node)
    return UNKNOWN


def _compare(node: ast.Compare) -> Any:
    right_text = ast.unparse(node.comparators[0])
    if right_text == "os.environ":
        return isinstance(node.ops[0], ast.NotIn)
    left, right = _evaluate(node.left), _evaluate(node.comparators[0])
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    operation = node.ops[0]
    if isinstance(operation, (ast.Eq, ast.Is)):
        return left == right
    if isinstance(operation, (ast.NotEq, ast.IsNot)):
        return left != right
    if isinstance(operation, ast.In):
        return left in right
    if isinstance(operation, ast.NotIn):
        return left not in right
    return UNKNOWN


def _evaluate_call(node: ast.Call) -> Any:
    name = ast.unparse(node.func)
    if name in ("os.getenv", "os.environ.get"):
        return _evaluate(node.args[1]) if len(node.args) > 1 else None
    arguments = [_evaluate(item) for item in node.args]
    if any(item is UNKNOWN for item in arguments):
        return UNKNOWN
    if name in ("int", "float", "str", "bool", "list") and len(arguments) == 1:
        try:
            return {"int": int, "float": float, "str": str, "bool": bool, "list": list}[name](arguments[0])
        except (TypeError, ValueError):
            return UNKNOWN
    if name in ("maybe_convert_int", "maybe_convert_bool", "maybe_convert_json_str_or_file") and arguments == [None]:
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("lower", "upper", "strip", "split"):
        owner = _evaluate(node.func.value)
        if isinstance(owner, str):
            return getattr(owner, node.func.attr)(*arguments)
    return UNKNOWN


# -- the option parser -------------------------------------------------------------------------------------------------


@dataclass
class _Kw:
    """The keyword arguments that get_kwargs() makes for one field; `overrides` are assignments made to it later."""

    name: str
    type: str
    default: Any = UNKNOWN
    json: str = ""
    choices: list[Any] = field(default_factory=list)
    boolean: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def copy(self) -> _Kw:
        return _Kw(self.name, self.type, self.default, self.json, list(self.choices), self.boolean, dict(self.extra))


@dataclass
class _Frame:
    """One function being interpreted: its local values and where its names come from."""

    module: Module
    values: dict[str, Any]
    owner: tuple[ast.ClassDef, Module] | None = None
    result: Any = None
    done: bool = False


class _Parser:
    """Interprets the building of the `vllm serve` parser."""

    def __init__(self, tree: Tree, release: Release) -> None:
        self.tree = tree
        self.release = release
        self.json_classes: dict[str, tuple[ast.ClassDef, Module]] = {}
        self.calls = 0
        self.inverses = self._inverse_prefixes()
        arguments = tree.module("vllm.engine.arg_utils")
        source = arguments.path.read_text(encoding="utf-8") if arguments is not None else ""
        self.optional_flags = "{bool, str, type(None)}" in source
        self.dataclass_is_json = "dataclass_cls" in source

    def run(self) -> None:
        """Interpret ServeSubcommand.subparser_init, which adds every option."""
        module = self.tree.module("vllm.entrypoints.cli.serve")
        found = self.tree.resolve("ServeSubcommand", module) if module is not None else None
        if found is None or not isinstance(found[0], ast.ClassDef):
            self.release.unhandled.append("entrypoints/cli/serve.py: no ServeSubcommand")
            return
        self.release.options.append(Option(["-h", "--help"], "flag"))
        self._call_method((found[0], found[1]), "subparser_init", [PARSER])

    def _inverse_prefixes(self) -> dict[str, str]:
        """Prefixes that a replacement of BooleanOptionalAction pairs (`--enable-` with `--disable-`), if there is one."""
        for name in ("vllm.utils.argparse_utils", "vllm.utils"):
            module = self.tree.module(name)
            if module is None or "FlexibleArgumentParser" not in module.defs:
                continue
            text = module.path.read_text(encoding="utf-8", errors="replace")
            match = re.search(r"self\.register\(\s*\"action\",\s*BooleanOptionalAction,\s*(\w+)", text)
            if match is None:
                return {}
            action = module.defs.get(match.group(1))
            for statement in getattr(action, "body", []):
                if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "_inverse_prefixes":
                    return dict(ast.literal_eval(statement.value))
            self.release.unhandled.append(f"{name}: {match.group(1)} replaces BooleanOptionalAction in an unknown way")
        return {}

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _call_method(self, owner: tuple[ast.ClassDef, Module], name: str, arguments: list[Any], skip: int = 0) -> Any:
        for node, module in self.tree.mro(*owner)[skip:]:
            for statement in node.body:
                if isinstance(statement, ast.FunctionDef) and statement.name == name:
                    kinds = {getattr(item, "id", "") for item in statement.decorator_list}
                    bound = arguments if "staticmethod" in kinds else [owner, *arguments]
                    return self._call(statement, module, bound, (owner[0], owner[1]), defined_in=node)
        self.release.unhandled.append(f"{owner[0].name}.{name}: not found")
        return UNKNOWN

    def _call(
        self,
        function: ast.FunctionDef,
        module: Module,
        arguments: list[Any],
        owner: tuple[ast.ClassDef, Module] | None = None,
        defined_in: ast.ClassDef | None = None,
    ) -> Any:
        self.calls += 1
        if self.calls > MAX_CALLS:
            self.release.unhandled.append(f"{function.name}: too many calls")
            return UNKNOWN
        names = [item.arg for item in function.args.args]
        defaults = function.args.defaults
        values: dict[str, Any] = {}
        for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            values[name] = self.tree.value(default, module)
        values.update(zip(names, arguments, strict=False))
        local = Module(module.name, module.path, module.tree, module.defs, dict(module.imports))
        frame = _Frame(local, values, owner)
        frame.values["__defined_in__"] = defined_in
        self._block(function.body, frame)
        return frame.result

    # -- statements ----------------------------------------------------------------------------------------------------

    def _block(self, body: list[ast.stmt], frame: _Frame) -> None:
        for statement in body:
            if frame.done:
                return
            self._statement(statement, frame)

    def _statement(self, statement: ast.stmt, frame: _Frame) -> None:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            note_import(statement, frame.module.imports, frame.module.name.rpartition(".")[0])
        elif isinstance(statement, ast.Return):
            frame.result, frame.done = self._value(statement.value, frame), True
        elif isinstance(statement, ast.Expr):
            self._value(statement.value, frame)
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            self._assign(statement.targets[0], self._value(statement.value, frame), frame)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            self._assign(statement.target, self._value(statement.value, frame), frame)
        elif isinstance(statement, ast.If):
            self._if(statement, frame)
        elif isinstance(statement, ast.For):
            self._for(statement, frame)
        elif isinstance(statement, (ast.With, ast.Try)):
            self._block(statement.body, frame)
        elif isinstance(statement, (ast.AugAssign, ast.Delete, ast.FunctionDef, ast.Pass, ast.Assert)):
            self._refuse_if_it_adds(statement, frame, unless=isinstance(statement, ast.FunctionDef))
        else:
            self._refuse_if_it_adds(statement, frame)

    def _refuse_if_it_adds(self, statement: ast.AST, frame: _Frame, unless: bool = False) -> None:
        text = ast.unparse(statement)
        if not unless and ("add_argument(" in text or "add_cli_args" in text):
            self.release.unhandled.append(f"{frame.module.name}: {text[:160]}")

    def _assign(self, target: ast.expr, value: Any, frame: _Frame) -> None:
        if isinstance(target, ast.Name):
            frame.values[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (list, tuple)):
            for item, part in zip(target.elts, value, strict=False):
                self._assign(item, part, frame)
        elif isinstance(target, ast.Subscript):
            owner, key = self._value(target.value, frame), self._value(target.slice, frame)
            if isinstance(owner, _Kw) and isinstance(key, str):
                owner.extra[key] = value
                if key == "action" and self._is_boolean(target, frame):
                    owner.boolean = True
            elif isinstance(owner, dict):
                owner[key] = value

    def _is_boolean(self, node: ast.AST, frame: _Frame) -> bool:
        return False

    def _if(self, statement: ast.If, frame: _Frame) -> None:
        test = self._test(statement.test, frame)
        if test is UNKNOWN:
            self._refuse_if_it_adds(statement, frame)
            self._block(statement.body, frame)
            return
        self._block(statement.body if test else statement.orelse, frame)

    def _test(self, node: ast.expr, frame: _Frame) -> Any:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._test(node.operand, frame)
            return UNKNOWN if inner is UNKNOWN else not inner
        if isinstance(node, ast.BoolOp):
            parts = [self._test(item, frame) for item in node.values]
            if UNKNOWN in parts:
                return UNKNOWN
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left = self._value(node.left, frame)
            right_text = ast.unparse(node.comparators[0])
            right = ARGV[1:] if right_text == "sys.argv[1:]" else self._value(node.comparators[0], frame)
            if isinstance(right, _Kw):
                right = {**right.extra, "default": None, "help": None, "type": None}
            if isinstance(node.ops[0], (ast.In, ast.NotIn)) and isinstance(right, (list, tuple, dict, str)):
                return (left in right) == isinstance(node.ops[0], ast.In)
            if left is not UNKNOWN and right is not UNKNOWN and isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
                return (left == right) == isinstance(node.ops[0], ast.Eq)
            return UNKNOWN
        value = self._value(node, frame)
        return UNKNOWN if value is UNKNOWN else bool(value)

    def _for(self, statement: ast.For, frame: _Frame) -> None:
        items = self._value(statement.iter, frame)
        if not isinstance(items, (list, tuple)):
            self._refuse_if_it_adds(statement, frame)
            return
        for item in items[:1000]:
            self._assign(statement.target, item, frame)
            self._block(statement.body, frame)

    # -- expressions ---------------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr | None, frame: _Frame) -> Any:
        if node is None:
            return None
        if isinstance(node, ast.Name):
            if node.id in frame.values:
                return frame.values[node.id]
            return self.tree.value(node, frame.module)
        if isinstance(node, ast.Call):
            return self._evaluate_call(node, frame)
        if isinstance(node, ast.Subscript):
            owner, key = self._value(node.value, frame), self._value(node.slice, frame)
            if isinstance(owner, _Kw) and isinstance(key, str):
                return owner.choices if key == "choices" else owner.extra.get(key, UNKNOWN)
            if isinstance(owner, dict):
                return owner.get(key, UNKNOWN) if isinstance(key, str) else UNKNOWN
            return UNKNOWN
        if isinstance(node, ast.JoinedStr):
            return self._joined(node, frame)
        if isinstance(node, (ast.List, ast.Tuple)):
            return [part for item in node.elts for part in self._spread(item, frame)]
        if isinstance(node, ast.Dict):
            return self._dict(node, frame)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self._value(node.left, frame), self._value(node.right, frame)
            both = type(left) is type(right) and isinstance(left, (str, list))
            return left + right if both else UNKNOWN
        return self.tree.value(node, frame.module)

    def _spread(self, item: ast.expr, frame: _Frame) -> list[Any]:
        if not isinstance(item, ast.Starred):
            return [self._value(item, frame)]
        inner = self._value(item.value, frame)
        return list(inner) if isinstance(inner, (list, tuple)) else [UNKNOWN]

    def _dict(self, node: ast.Dict, frame: _Frame) -> Any:
        merged: Any = {}
        for key, item in zip(node.keys, node.values, strict=True):
            value = self._value(item, frame)
            if key is None and isinstance(value, _Kw):
                kept = {} if isinstance(merged, _Kw) else merged
                merged = value.copy()
                merged.extra = {**kept, **merged.extra}
            elif key is None and isinstance(value, dict):
                (merged.extra if isinstance(merged, _Kw) else merged).update(value)
            elif key is not None:
                (merged.extra if isinstance(merged, _Kw) else merged)[self._value(key, frame)] = value
        return merged

    def _joined(self, node: ast.JoinedStr, frame: _Frame) -> Any:
        parts = []
        for item in node.values:
            value = self._value(item.value if isinstance(item, ast.FormattedValue) else item, frame)
            if not isinstance(value, str):
                return UNKNOWN
            parts.append(value)
        return "".join(parts)

    def _evaluate_call(self, node: ast.Call, frame: _Frame) -> Any:
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name == "get_kwargs" and node.args:
            return self._get_kwargs(node.args[0], frame)
        if not isinstance(function, ast.Attribute):
            return self._call_function(name, node, frame)
        if name == "add_argument":
            self._add_argument(node, frame)
            return PARSER
        if name in ("add_argument_group", "add_parser", "add_mutually_exclusive_group"):
            return PARSER
        owner = self._value(function.value, frame)
        if isinstance(owner, tuple) and len(owner) == 2 and isinstance(owner[0], ast.ClassDef):
            return self._call_method(owner, name, [self._value(item, frame) for item in node.args])
        if isinstance(function.value, ast.Call) and getattr(function.value.func, "id", "") == "super" and frame.owner:
            defined = frame.values.get("__defined_in__")
            classes = [item[0] for item in self.tree.mro(*frame.owner)]
            skip = classes.index(defined) + 1 if defined in classes else 1
            return self._call_method(frame.owner, name, [self._value(item, frame) for item in node.args], skip)
        target = self.tree.resolve_class(function.value, frame.module)
        if target is not None and name in ("add_cli_args", "_customize_cli_kwargs"):
            arguments = [self._value(item, frame) for item in node.args]
            return self._call_method(target, name, arguments)
        return self._call_on_value(name, owner, node, frame)

    def _call_on_value(self, name: str, owner: Any, node: ast.Call, frame: _Frame) -> Any:
        arguments = [self._value(item, frame) for item in node.args]
        if isinstance(owner, str) and name in ("replace", "lower", "upper") and UNKNOWN not in arguments:
            return getattr(owner, name)(*arguments)
        if isinstance(owner, dict):
            if name == "items":
                return [list(item) for item in owner.items()]
            if name in ("pop", "get", "setdefault") and arguments and isinstance(arguments[0], str):
                fallback = arguments[1] if len(arguments) > 1 else None
                return owner.pop(arguments[0], fallback) if name == "pop" else owner.get(arguments[0], fallback)
        if isinstance(owner, _Kw) and name in ("pop", "get", "update") and arguments:
            if name == "update":
                owner.extra.update(arguments[0] if isinstance(arguments[0], dict) else {})
                return None
            fallback = arguments[1] if len(arguments) > 1 else None
            return owner.extra.pop(arguments[0], fallback) if name == "pop" else owner.extra.get(arguments[0], fallback)
        if isinstance(owner, list) and name == "remove" and arguments and arguments[0] in owner:
            owner.remove(arguments[0])
        return UNKNOWN

    def _call_function(self, name: str, node: ast.Call, frame: _Frame) -> Any:
        found = self.tree.resolve(name, frame.module)
        if found is not None and isinstance(found[0], ast.FunctionDef):
            arguments = [self._value(item, frame) for item in node.args]
            if any(item is PARSER for item in arguments) and name != "show_filtered_argument_or_group_from_help":
                return self._call(found[0], found[1], arguments)
        return UNKNOWN

    # -- get_kwargs and add_argument -----------------------------------------------------------------------------------

    def _get_kwargs(self, node: ast.expr, frame: _Frame) -> Any:
        value = frame.values.get(node.id) if isinstance(node, ast.Name) else None
        target = value if isinstance(value, tuple) else self.tree.resolve_class(node, frame.module)
        if target is None:
            self.release.unhandled.append(f"{frame.module.name}: get_kwargs({ast.unparse(node)})")
            return {}
        return {name: self._kw(item) for name, item in self.tree.fields(*target).items()}

    def _kw(self, item: Any) -> _Kw:
        """What get_kwargs() makes of a field, by the same order of questions about its type."""
        heads = self.tree.heads(item.hint, item.module)
        plain = heads - {"None"}
        made = _Kw(item.name, "str", self.tree.value(item.value, item.module))
        target = self.tree.class_of_hint(item.hint, item.module)
        if target is not None:
            made.json = target[0].name
            self.json_classes[made.json] = target
        if made.json and self.dataclass_is_json:
            made.type = "json"
        elif self.optional_flags and heads == {"bool", "str", "None"}:
            made.type = "str?"
        elif "bool" in plain:
            made.type, made.boolean = "bool", True
        elif "Literal" in plain:
            made.choices = self.tree.literals(item.hint, item.module)
            made.type = "int" if made.choices and all(type(value) is int for value in made.choices) else "str"
        elif plain & {"tuple", "list", "set"}:
            made.type = "str+"
        elif "int" in plain:
            made.type = "int"
        elif "float" in plain:
            made.type = "float"
        elif "dict" in plain or made.json:
            made.type = "json"
        return made

    def _add_argument(self, node: ast.Call, frame: _Frame) -> None:
        names = [part for item in node.args for part in self._spread(item, frame)]
        if any(not isinstance(name, str) for name in names):
            self.release.unhandled.append(f"{frame.module.name}: {ast.unparse(node)[:160]}")
            return
        names = [name for name in names if name.startswith("-")]
        if not names:
            return
        option = Option(names, "str")
        boolean = False
        for keyword in node.keywords:
            if keyword.arg is None:
                value = self._value(keyword.value, frame)
                if isinstance(value, _Kw):
                    boolean = self._take_kw(option, value, frame) or boolean
                elif isinstance(value, dict):
                    option.default = value.get("default", option.default)
                else:
                    self.release.unhandled.append(f"{frame.module.name}: {ast.unparse(node)[:160]}")
            elif keyword.arg == "action":
                boolean = self._take_action(option, keyword.value, frame) or boolean
            else:
                self._take_keyword(option, keyword.arg, keyword.value, frame)
        if boolean:
            self._make_boolean(option)
        self.release.options.append(option)

    def _take_kw(self, option: Option, kw: _Kw, frame: _Frame) -> bool:
        option.type, option.json, option.choices = kw.type, kw.json, kw.choices
        option.default = kw.extra.get("default", kw.default)
        option.deprecated = bool(kw.extra.get("deprecated", False)) and kw.extra["deprecated"] is not UNKNOWN
        return kw.boolean and "action" not in kw.extra

    def _take_action(self, option: Option, node: ast.expr, frame: _Frame) -> bool:
        name = node.value if isinstance(node, ast.Constant) else getattr(node, "attr", getattr(node, "id", ""))
        if name in ("store_true", "store_false", "store_const", "count", "help", "version"):
            option.type = "flag"
            option.default = name == "store_false" if option.default is UNKNOWN else option.default
            return False
        if name == BOOLEAN:
            return True
        target = self.tree.resolve_class(node, frame.module)
        bases = [ast.unparse(base) for base in target[0].bases] if target is not None else []
        return any(base.endswith(BOOLEAN) for base in bases)

    def _take_keyword(self, option: Option, name: str, node: ast.expr, frame: _Frame) -> None:
        if name == "default":
            option.default = self._value(node, frame)
        elif name == "type":
            text = ast.unparse(node)
            match = re.match(r"(\w+)\.from_(?:cli|json)$", text)
            if match:
                target = self.tree.resolve_class(ast.Name(match.group(1), ast.Load()), frame.module)
                option.type = "json"
                if target is not None:
                    option.json = target[0].name
                    self.json_classes[option.json] = target
            elif "json.loads" in text:
                option.type = "json"
            elif "int" in text and "lambda" not in text:
                option.type = "int"
            elif "float" in text:
                option.type = "float"
        elif name == "nargs" and isinstance(node, ast.Constant) and node.value in ("?", "*", "+"):
            option.type = option.type.rstrip("?*+") + str(node.value)
        elif name == "choices":
            value = self._value(node, frame)
            option.choices = value if isinstance(value, list) and UNKNOWN not in value else []
        elif name == "deprecated":
            option.deprecated = self._value(node, frame) is True

    def _make_boolean(self, option: Option) -> None:
        option.type = "bool"
        long = [name for name in option.names if name.startswith("--")]
        option.negative = [f"--no-{name[2:]}" for name in long]
        for name in long:
            for prefix, inverse in self.inverses.items():
                if name.startswith(prefix):
                    option.negative.append(inverse + name.removeprefix(prefix))


# -- JSON keys ---------------------------------------------------------------------------------------------------------


def _extract_json(tree: Tree, release: Release, classes: dict[str, tuple[ast.ClassDef, Module]]) -> None:
    """The keys of every config class that an option takes as JSON, and of the classes inside those."""
    wanted = {option.json for option in release.options if option.json}
    known = dict(classes)
    pending = sorted(wanted)
    while pending:
        name = pending.pop()
        if name in release.json_keys or name not in known:
            continue
        keys: dict[str, str] = {}
        for item in tree.fields(*known[name]).values():
            if not item.init:
                continue
            inner = tree.class_of_hint(item.hint, item.module)
            if inner is not None and inner[0].name != name:
                known.setdefault(inner[0].name, inner)
                pending.append(inner[0].name)
            keys[item.name] = inner[0].name if inner is not None else ""
        release.json_keys[name] = keys
