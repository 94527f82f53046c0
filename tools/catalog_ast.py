"""Reads a vLLM source tree without running it: names, classes, dataclass fields, type hints, constant values.

Everything is lazy: a module is parsed when a name leads to it. What can't be followed is `UNKNOWN`; callers decide
whether that is harmless (a default value) or must stop the generator (an option string).

Standard library only; used by gen_catalog.py.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_DEPTH = 40
"""Names followed through imports and aliases before giving up."""


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


@dataclass
class Module:
    """One parsed file: its dotted name, top-level definitions, and where imported names come from."""

    name: str
    path: Path
    tree: ast.Module
    defs: dict[str, ast.AST] = field(default_factory=dict)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)


@dataclass
class Field:
    """One dataclass field: its type hint and default as written, and the module that gives them meaning."""

    name: str
    hint: ast.expr
    value: ast.expr | None
    module: Module
    init: bool = True


class Tree:
    """The sources of one release."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self._modules: dict[str, Module | None] = {}
        self._fields: dict[int, dict[str, Field]] = {}

    def module(self, name: str) -> Module | None:
        """The module with this dotted name (`vllm.engine.arg_utils`), or None when the tree has none."""
        if name not in self._modules:
            self._modules[name] = self._parse(name)
        return self._modules[name]

    def module_at(self, path: Path) -> Module | None:
        """The module of a file of the tree."""
        parts = ["vllm", *path.relative_to(self.package).with_suffix("").parts]
        return self.module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))

    def _parse(self, name: str) -> Module | None:
        parts = name.split(".")
        if parts[0] != "vllm":
            return None
        base = self.package.joinpath(*parts[1:])
        path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        if not path.is_file():
            return None
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
        module = Module(name, path, tree)
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        _collect(tree.body, module, package)
        return module

    def resolve(self, name: str, module: Module, depth: int = 0) -> tuple[ast.AST, Module] | None:
        """The definition that `name` means in `module`, and the module that holds it; imports are followed."""
        if depth > MAX_DEPTH:
            return None
        if name in module.defs:
            return module.defs[name], module
        if name not in module.imports:
            return None
        source, original = module.imports[name]
        if original is None:
            return None
        target = self.module(source)
        if target is None:
            return None
        if original not in target.defs and original not in target.imports:
            return None
        return self.resolve(original, target, depth + 1)

    def resolve_class(self, node: ast.expr, module: Module) -> tuple[ast.ClassDef, Module] | None:
        """The class that an expression names, if it names one of the tree."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            home = self.submodule(node.value.id, module)
            found = self.resolve(node.attr, home) if home is not None else None
        elif isinstance(node, ast.Name):
            found = self.resolve(node.id, module)
        else:
            return None
        if found is None:
            return None
        definition, home_module = found
        if isinstance(definition, ast.ClassDef):
            return definition, home_module
        if isinstance(definition, ast.Assign) and isinstance(definition.value, (ast.Name, ast.Attribute)):
            return self.resolve_class(definition.value, home_module)
        return None

    def submodule(self, name: str, module: Module) -> Module | None:
        """The module that a local name stands for (`import vllm.envs as envs`, `from vllm import envs`)."""
        if name not in module.imports:
            return None
        source, original = module.imports[name]
        return self.module(source if original is None else f"{source}.{original}")

    def mro(self, node: ast.ClassDef, module: Module, depth: int = 0) -> list[tuple[ast.ClassDef, Module]]:
        """The class and its bases as far as the tree has them, nearest first."""
        found = [(node, module)]
        for base in node.bases if depth < MAX_DEPTH else []:
            target = self.resolve_class(base.value if isinstance(base, ast.Subscript) else base, module)
            if target is not None:
                found += [item for item in self.mro(*target, depth + 1) if item not in found]
        return found

    def fields(self, node: ast.ClassDef, module: Module) -> dict[str, Field]:
        """The dataclass fields of a class, bases first, in order."""
        if id(node) not in self._fields:
            found: dict[str, Field] = {}
            for owner, home in reversed(self.mro(node, module)):
                found.update(_own_fields(owner, home))
            self._fields[id(node)] = found
        return self._fields[id(node)]

    # -- type hints ----------------------------------------------------------------------------------------------------

    def heads(self, hint: ast.expr | None, module: Module, depth: int = 0) -> set[str]:
        """The members of a union type by outermost name: `int`, `None`, `Literal`, `dataclass:X`, `class:X` ..."""
        if hint is None or depth > MAX_DEPTH:
            return set()
        if isinstance(hint, ast.Constant):
            if hint.value is None:
                return {"None"}
            if isinstance(hint.value, str):
                return self.heads(_expression(hint.value), module, depth + 1)
            return set()
        if isinstance(hint, ast.BinOp) and isinstance(hint.op, ast.BitOr):
            return self.heads(hint.left, module, depth + 1) | self.heads(hint.right, module, depth + 1)
        if isinstance(hint, ast.Subscript):
            return self._subscript_heads(hint, module, depth)
        name = hint.id if isinstance(hint, ast.Name) else hint.attr if isinstance(hint, ast.Attribute) else ""
        if name in _BUILTIN:
            return {name}
        if name in ("Optional", "Any", "List", "Dict", "Tuple", "Set", "Literal", "Callable"):
            return {name.lower() if name in ("List", "Dict", "Tuple", "Set") else name}
        target = self.resolve_class(hint, module)
        if target is not None and any(ast.unparse(base).partition("[")[0] == "dict" for base in target[0].bases):
            return {"dict"}
        if target is not None:
            return {("dataclass:" if is_dataclass(target[0]) else "class:") + target[0].name}
        found = self.resolve(name, module) if isinstance(hint, ast.Name) else None
        if found is not None:
            value = getattr(found[0], "value", None)
            if isinstance(value, ast.expr):
                return self.heads(value, found[1], depth + 1)
        return {f"class:{name}"} if name else set()

    def _subscript_heads(self, hint: ast.Subscript, module: Module, depth: int) -> set[str]:
        outer = hint.value.attr if isinstance(hint.value, ast.Attribute) else getattr(hint.value, "id", "")
        members = list(hint.slice.elts) if isinstance(hint.slice, ast.Tuple) else [hint.slice]
        if outer == "Optional":
            return self.heads(hint.slice, module, depth + 1) | {"None"}
        if outer == "Union":
            return set().union(*(self.heads(member, module, depth + 1) for member in members))
        if outer in ("Annotated", "SkipValidation", "InitVar", "Final"):
            return self.heads(members[0], module, depth + 1)
        if outer in ("List", "Dict", "Tuple", "Set"):
            return {outer.lower()}
        return {outer} if outer in _BUILTIN or outer == "Literal" else {f"class:{outer}"}

    def literals(self, hint: ast.expr | None, module: Module, depth: int = 0) -> list[Any]:
        """Every value of the `Literal`s in a type hint."""
        if hint is None or depth > MAX_DEPTH:
            return []
        if isinstance(hint, ast.BinOp):
            return self.literals(hint.left, module, depth + 1) + self.literals(hint.right, module, depth + 1)
        if isinstance(hint, ast.Name):
            found = self.resolve(hint.id, module)
            value = getattr(found[0], "value", None) if found is not None else None
            return self.literals(value, found[1], depth + 1) if found and isinstance(value, ast.expr) else []
        if not isinstance(hint, ast.Subscript):
            return []
        outer = hint.value.attr if isinstance(hint.value, ast.Attribute) else getattr(hint.value, "id", "")
        members = list(hint.slice.elts) if isinstance(hint.slice, ast.Tuple) else [hint.slice]
        if outer == "Literal":
            plain = [member.value for member in members if isinstance(member, ast.Constant)]
            nested = [member for member in members if not isinstance(member, ast.Constant)]
            return plain + [value for member in nested for value in self.literals(member, module, depth + 1)]
        if outer in ("Optional", "Union", "Annotated", "SkipValidation"):
            return [value for member in members for value in self.literals(member, module, depth + 1)]
        return []

    def class_of_hint(
        self, hint: ast.expr | None, module: Module, depth: int = 0
    ) -> tuple[ast.ClassDef, Module] | None:
        """The first dataclass that a type hint names."""
        if hint is None or depth > MAX_DEPTH:
            return None
        if isinstance(hint, ast.Constant) and isinstance(hint.value, str):
            return self.class_of_hint(_expression(hint.value), module, depth + 1)
        if isinstance(hint, ast.BinOp):
            left = self.class_of_hint(hint.left, module, depth + 1)
            return left or self.class_of_hint(hint.right, module, depth + 1)
        if isinstance(hint, ast.Subscript):
            outer = hint.value.attr if isinstance(hint.value, ast.Attribute) else getattr(hint.value, "id", "")
            if outer not in ("Optional", "Union", "Annotated", "SkipValidation", "InitVar"):
                return None
            members = list(hint.slice.elts) if isinstance(hint.slice, ast.Tuple) else [hint.slice]
            for member in members:
                found = self.class_of_hint(member, module, depth + 1)
                if found is not None:
                    return found
            return None
        target = self.resolve_class(hint, module)
        return target if target is not None and is_dataclass(target[0]) else None

    # -- constant values -----------------------------------------------------------------------------------------------

    def value(self, node: ast.expr | None, module: Module, depth: int = 0) -> Any:
        """The constant that an expression gives, or UNKNOWN. Nothing is executed."""
        if node is None or depth > MAX_DEPTH:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            items = [self.value(item, module, depth + 1) for item in node.elts]
            return UNKNOWN if UNKNOWN in items else items
        if isinstance(node, ast.Dict) and None not in node.keys:
            keys = [self.value(key, module, depth + 1) for key in node.keys]
            values = [self.value(item, module, depth + 1) for item in node.values]
            return UNKNOWN if UNKNOWN in keys or UNKNOWN in values else dict(zip(keys, values, strict=True))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.value(node.operand, module, depth + 1)
            return -inner if isinstance(inner, (int, float)) else UNKNOWN
        if isinstance(node, ast.BinOp):
            return _arithmetic(
                node, self.value(node.left, module, depth + 1), self.value(node.right, module, depth + 1)
            )
        if isinstance(node, ast.Name):
            found = self.resolve(node.id, module)
            value = getattr(found[0], "value", None) if found is not None else None
            return self.value(value, found[1], depth + 1) if found and isinstance(value, ast.expr) else UNKNOWN
        if isinstance(node, ast.Attribute):
            return self._attribute(node, module, depth)
        if isinstance(node, ast.Call):
            return self._call(node, module, depth)
        return UNKNOWN

    def _attribute(self, node: ast.Attribute, module: Module, depth: int) -> Any:
        if ast.unparse(node) == "ssl.CERT_NONE":
            return 0
        target = self.resolve_class(node.value, module)
        if target is None:
            return UNKNOWN
        found = self.fields(*target).get(node.attr)
        if found is not None:
            return self.value(found.value, found.module, depth + 1)
        for statement in target[0].body:
            if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == node.attr:
                return self.value(statement.value, target[1], depth + 1)
        return UNKNOWN

    def _call(self, node: ast.Call, module: Module, depth: int) -> Any:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        keywords = {item.arg: item.value for item in node.keywords}
        if name in ("field", "Field"):
            if "default" in keywords:
                return self.value(keywords["default"], module, depth + 1)
            factory = keywords.get("default_factory")
            if isinstance(factory, ast.Lambda):
                return self.value(factory.body, module, depth + 1)
            return {"list": [], "dict": {}, "set": []}.get(getattr(factory, "id", ""), UNKNOWN)
        if name == "get_field" and len(node.args) == 2 and isinstance(node.args[1], ast.Constant):
            return self._attribute(ast.Attribute(node.args[0], node.args[1].value, ast.Load()), module, depth)
        if name in ("int", "float", "str", "bool") and len(node.args) == 1:
            inner = self.value(node.args[0], module, depth + 1)
            plain = isinstance(inner, (int, float, str))
            return {"int": int, "float": float, "str": str, "bool": bool}[name](inner) if plain else UNKNOWN
        return UNKNOWN


_BUILTIN = ("bool", "int", "float", "str", "list", "tuple", "dict", "set", "bytes")


def is_dataclass(node: ast.ClassDef) -> bool:
    """Whether a class is decorated as a dataclass (`@dataclass`, `@config`, with or without arguments)."""
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
        if name in ("dataclass", "config"):
            return True
    return False


def _expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


def _arithmetic(node: ast.BinOp, left: Any, right: Any) -> Any:
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        both = isinstance(node.op, ast.Add) and isinstance(left, str) and isinstance(right, str)
        return left + right if both else UNKNOWN
    if isinstance(node.op, ast.Mult):
        return left * right
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    if isinstance(node.op, ast.LShift) and isinstance(left, int) and isinstance(right, int) and right < 64:
        return left << right
    if isinstance(node.op, ast.Pow) and abs(right) < 64:
        return left**right
    return UNKNOWN


def _collect(body: list[ast.stmt], module: Module, package: str) -> None:
    """Fill a module's definitions and imports from its top level, through `if TYPE_CHECKING` and `try`."""
    for statement in body:
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            module.defs[statement.name] = statement
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    module.defs[target.id] = statement
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            if statement.value is not None:
                module.defs[statement.target.id] = statement
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            note_import(statement, module.imports, package)
        elif isinstance(statement, ast.If):
            # The `else` of `if TYPE_CHECKING` holds run-time stand-ins (`Backend = Any`): the first definition stays.
            _collect_missing(statement.orelse, module, package)
            _collect_missing(statement.body, module, package)
        elif isinstance(statement, ast.Try):
            _collect(statement.body, module, package)


def _collect_missing(body: list[ast.stmt], module: Module, package: str) -> None:
    inner = Module(module.name, module.path, module.tree)
    _collect(body, inner, package)
    for name, definition in inner.defs.items():
        if not (isinstance(definition, ast.Assign) and ast.unparse(definition.value) in ("Any", "object", "None")):
            module.defs.setdefault(name, definition)
    for name, origin in inner.imports.items():
        module.imports.setdefault(name, origin)


def note_import(
    statement: ast.Import | ast.ImportFrom, imports: dict[str, tuple[str, str | None]], package: str
) -> None:
    """Record what an import statement binds: local name -> (module, name in it or None for the module itself)."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            if alias.asname or "." not in alias.name:
                imports[alias.asname or alias.name] = (alias.name, None)
        return
    source = statement.module or ""
    if statement.level:
        base = package.split(".")
        base = base[: len(base) - (statement.level - 1)]
        source = ".".join([*base, source] if source else base)
    for alias in statement.names:
        imports[alias.asname or alias.name] = (source, alias.name)


def _own_fields(node: ast.ClassDef, module: Module) -> dict[str, Field]:
    found: dict[str, Field] = {}
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        text = ast.unparse(statement.annotation)
        if text.startswith(("ClassVar", "typing.ClassVar", "'ClassVar", "InitVar", "KW_ONLY")):
            continue
        init = True
        if isinstance(statement.value, ast.Call):
            for keyword in statement.value.keywords:
                if keyword.arg == "init" and isinstance(keyword.value, ast.Constant):
                    init = bool(keyword.value.value)
        found[statement.target.id] = Field(statement.target.id, statement.annotation, statement.value, module, init)
    return found
