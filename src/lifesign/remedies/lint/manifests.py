"""Containers in YAML: compose files, Kubernetes manifests, Helm values, and vLLM's own `--config` files.

One walk finds every mapping that looks like a container (a command, arguments, an image, an environment), wherever a
kind of manifest keeps it. Lines come from the YAML parser's marks. Nodes and depth are bounded, aliases included.
"""

from __future__ import annotations

import json
import re
from typing import Any

from lifesign.errors import SourceError
from lifesign.remedies.lint import shell
from lifesign.remedies.lint.commands import image_version, is_ours, starts
from lifesign.remedies.lint.model import Invocation, Setting, Word

MAX_NODES = 50_000
MAX_DEPTH = 60
_COMMAND_KEYS = ("entrypoint", "command", "args")
_TEMPLATE = re.compile(r"\{\{|\$\(|\$\{|\$[A-Za-z_]")


def read(text: str, path: str) -> list[Invocation]:
    """The invocations of a YAML or JSON text. Raises SourceError when it is neither."""
    import yaml

    try:
        nodes = list(yaml.compose_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or "not YAML"
        helm = (
            ": render Helm templates first (helm template ...)" if "{{" in text else ": correct it and run lint again"
        )
        raise SourceError(
            path, f"isn't valid YAML ({reason}){helm}", mark.line + 1 if mark is not None else None
        ) from None
    except RecursionError:
        raise SourceError(path, "is nested too deeply to be a manifest: name the right file") from None
    walker = _Walker(path)
    for node in nodes:
        if node is not None:
            walker.walk(node, 0)
    if not walker.found:
        for node in nodes:
            walker.config_file(node)
    return walker.found


def exec_form(body: str, line: int) -> list[Word] | None:
    """The words of a Dockerfile's JSON form (`["vllm", "serve"]`); None when it isn't one."""
    if not body.startswith("["):
        return None
    try:
        values = json.loads(body.replace("\\\n", "\n"))
    except ValueError:
        return None
    words: list[Word] = []
    at = 0
    for value in values if isinstance(values, list) else []:
        text = str(value)
        found = body.find(json.dumps(text, ensure_ascii=False), at)
        at = found if found >= 0 else at
        words.append(Word(text, line + body.count("\n", 0, at), _TEMPLATE.search(text) is None))
    return words


class _Walker:
    """Walks composed YAML nodes and collects invocations."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.found: list[Invocation] = []
        self.left = MAX_NODES

    def walk(self, node: Any, depth: int) -> None:
        """Look at a node and everything under it, as far as the bounds allow."""
        self.left -= 1
        if self.left <= 0 or depth > MAX_DEPTH:
            return
        if node.id == "sequence":
            for item in node.value:
                self.walk(item, depth + 1)
        elif node.id == "mapping":
            keys = _keys(node)
            if any(name in keys for name in (*_COMMAND_KEYS, "env", "environment")):
                self._container(node, keys)
            for _, value in node.value:
                self.walk(value, depth + 1)

    def _container(self, node: Any, keys: dict[str, Any]) -> None:
        settings = _settings(keys.get("env")) + _settings(keys.get("environment"))
        image = _image(keys)
        version = image_version(image)
        words: list[Word] = []
        for name in _COMMAND_KEYS:
            words += _words(keys.get(name))
        found = starts(words, self.path, exported=settings) if words else []
        ours = "vllm" in image and "command" not in keys and "entrypoint" not in keys
        if not found and (ours or (version and words and words[0].text.startswith("-"))):
            line = words[0].line if words else node.start_mark.line + 1
            complete = all(word.literal for word in words)
            found = [Invocation(self.path, line, words, settings, complete=complete)]
        if not found and any(is_ours(setting.name) for setting in settings):
            found = [Invocation(self.path, settings[0].line, [], settings, complete=False)]
        for invocation in found:
            invocation.image_version = invocation.image_version or version
        self.found += found

    def config_file(self, node: Any) -> None:
        """A file for `vllm serve --config`: a flat mapping of option names."""
        if node is None or node.id != "mapping":
            return
        from lifesign.remedies import catalog as catalogs

        known = catalogs.load()
        keys = _keys(node)
        named = [name for name in keys if known.option_ranges("--" + name)]
        if not named or len(named) * 2 < len(keys):
            return
        words: list[Word] = []
        for key, value in node.value:
            line = key.start_mark.line + 1
            spelling = "--" + str(key.value)
            if value.id != "scalar":
                words.append(Word(spelling, line))
                words.append(Word("", value.start_mark.line + 1, False))
            elif str(value.value).lower() in ("true", "yes"):
                words.append(Word(spelling, line))
            elif str(value.value).lower() not in ("false", "no", "null", "~", ""):
                words.append(Word(f"{spelling}={value.value}", line))
        self.found.append(Invocation(self.path, 1, words, []))


def _image(keys: dict[str, Any]) -> str:
    """The container image of a mapping: `image:`, or `repository:` and `tag:` as Helm values have it."""
    image, tag = _scalar(keys.get("image")), _scalar(keys.get("tag"))
    repository = _scalar(keys.get("repository")) or image
    return f"{repository}:{tag}" if tag and repository else image


def _scalar(node: Any) -> str:
    return str(node.value) if node is not None and node.id == "scalar" else ""


def _keys(node: Any) -> dict[str, Any]:
    return {str(key.value): value for key, value in node.value if key.id == "scalar"}


def _settings(node: Any) -> list[Setting]:
    """An environment: a mapping, a list of `NAME=value`, or a list of `{name, value}`."""
    found: list[Setting] = []
    if node is None or node.id == "scalar":
        return found
    for item in node.value[:2000]:
        if node.id == "mapping":
            key, value = item
            if value.id == "scalar":
                found.append(_setting(str(key.value), str(value.value), key.start_mark.line + 1))
        elif item.id == "scalar":
            name, equals, text = str(item.value).partition("=")
            if equals:
                found.append(_setting(name.strip(), text, item.start_mark.line + 1))
        elif item.id == "mapping":
            keys = _keys(item)
            label, given = keys.get("name"), keys.get("value")
            if label is not None and label.id == "scalar":
                text = str(given.value) if given is not None and given.id == "scalar" else ""
                setting = _setting(str(label.value), text, label.start_mark.line + 1)
                found.append(setting if given is not None else Setting(setting.name, "", setting.line, False))
    return found


def _setting(name: str, value: str, line: int) -> Setting:
    return Setting(name, value, line, _TEMPLATE.search(value) is None)


def _words(node: Any) -> list[Word]:
    """A command as a list of words, or as one string that a shell-like splitter takes apart."""
    if node is None:
        return []
    if node.id == "scalar":
        line = node.start_mark.line + 1 + (node.style in ("|", ">"))
        text = str(node.value)
        if node.style == ">":
            text = text.replace("\n", " ")
        return [word for command in shell.split(text, line) for word in command.words]
    if node.id != "sequence":
        return []
    found: list[Word] = []
    for item in node.value[:5000]:
        if item.id == "scalar":
            line = item.start_mark.line + 1 + (item.style in ("|", ">"))
            text = str(item.value)
            found.append(Word(text, line, _TEMPLATE.search(text) is None))
    return found
