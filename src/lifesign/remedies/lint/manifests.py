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
from lifesign.remedies.lint.charts import chart_words, config_words, kserve, mapping, scalar
from lifesign.remedies.lint.commands import DASHES, image_version, is_ours, script, starts
from lifesign.remedies.lint.model import Invocation, Setting, Word

MAX_NODES = 50_000
MAX_DEPTH = 60
_COMMAND_KEYS = ("entrypoint", "command", "args")
_ARGUMENT_KEYS = ("vllmConfig", "extraArgs")
_ENV_KEYS = ("env", "environment", "envs")
_SCRIPT_KEYS = ("run", "script", "commands", "cmd", "shell")
_SERVER_IMAGE = re.compile(r"vllm(?![\w.-]{0,40}(?:router|proxy|gateway|exporter|operator|bench))")
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

    def walk(self, node: Any, depth: int, service: bool = False, services: bool = False) -> None:
        """Look at a node and everything under it, as far as the bounds allow.

        service: whether it is a service of a compose file; services: whether its members are.
        """
        self.left -= 1
        if self.left <= 0 or depth > MAX_DEPTH:
            return
        if node.id == "sequence":
            for item in node.value:
                self.walk(item, depth + 1)
        elif node.id == "mapping":
            keys = mapping(node)
            if any(name in keys for name in (*_COMMAND_KEYS, *_ARGUMENT_KEYS, *_ENV_KEYS)):
                self._container(node, keys, service)
            for name, value in keys.items():
                self._script(name, value)
            for key, value in node.value:
                self.walk(value, depth + 1, services, services=scalar(key) == "services")

    def _script(self, name: str, node: Any) -> None:
        """A step that a workflow or a job runs in a shell (`run: |`, `commands:`), or a script in a ConfigMap."""
        if name not in _SCRIPT_KEYS and not name.endswith(".sh"):
            return
        for item in node.value[:500] if node.id == "sequence" else [node]:
            if "vllm" in scalar(item):
                word = _word(item)
                self.found += [found for found in script(word.text, self.path, word.line) if found.words]

    def _container(self, node: Any, keys: dict[str, Any], service: bool) -> None:
        settings = [setting for name in _ENV_KEYS for setting in _settings(keys.get(name))]
        image = _image(keys)
        version = image_version(image)
        words: list[Word] = []
        for name in _COMMAND_KEYS:
            words += _words(keys.get(name))
        found = starts(words, self.path, exported=settings) if words else []
        own_entry = "entrypoint" in keys or ("command" in keys and not service)
        dashed = bool(words) and words[0].text.startswith(("-", *DASHES))
        ours = _SERVER_IMAGE.search(image) is not None and (dashed or not own_entry) and not _is_shell(words)
        kserve_words = kserve(keys, words)
        chart = mapping(keys.get("vllmConfig"))
        if kserve_words is not None:
            words, ours = kserve_words, True
        elif chart:
            words, ours = [*chart_words(keys["vllmConfig"]), *_words(chart.get("extraArgs"))], True
        elif not words and ours:
            words = _words(keys.get("extraArgs"))
        ours = ours or scalar(keys.get("modelCommand")) == "vllmServe"
        if not found and ours:
            line = words[0].line if words else node.start_mark.line + 1
            complete = all(word.literal for word in words)
            found = [Invocation(self.path, line, words, settings, complete=complete)]
        if not found and any(is_ours(setting.name) for setting in settings):
            found = [Invocation(self.path, settings[0].line, [], settings, complete=False)]
        for invocation in found:
            invocation.image_version = invocation.image_version or version
        self.found += found

    def config_file(self, node: Any) -> None:
        """A file for `vllm serve --config`: a mapping of option names."""
        words = config_words(node) if node is not None and node.id == "mapping" else None
        if words is not None:
            self.found.append(Invocation(self.path, 1, words, []))


def _is_shell(words: list[Word]) -> bool:
    return bool(words) and words[0].text.rpartition("/")[2] in ("sh", "bash", "ash", "dash", "zsh")


def _image(keys: dict[str, Any]) -> str:
    """The container image of a mapping: `image:`, or `repository:` and `tag:` as Helm values have it."""
    inner = mapping(keys.get("image")) or keys
    tag, repository = scalar(inner.get("tag")), scalar(inner.get("repository")) or scalar(keys.get("image"))
    return f"{repository}:{tag}" if tag and repository else repository


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
            keys = mapping(item)
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
    return [_word(item) for item in node.value[:5000] if item.id == "scalar"]


def _word(node: Any) -> Word:
    """A scalar as one word, at the line where its text begins."""
    text = str(node.value)
    return Word(text, node.start_mark.line + 1 + (node.style in ("|", ">")), _TEMPLATE.search(text) is None)
