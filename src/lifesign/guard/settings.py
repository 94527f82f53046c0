"""What a run of guard was asked to do, in one immutable value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lifesign.errors import UsageError
from lifesign.guard.probes.metrics import parse_url
from lifesign.text import Lang, is_whole

CONFIG_BYTES = 1 << 20


@dataclass(frozen=True)
class Settings:
    """Settings of one run of guard. Times in seconds, sizes in bytes.

    grace_s: from a stop request to the end of everything. http: (host, port), or None for no interface.
    own_timeouts: raise vLLM's RPC limit, because guard's detector judges sooner and better.
    private_tmp: each life gets its own TMPDIR, so that what it leaves behind can be told from other engines' files.
    own_cgroup: each life gets its own control group, where the system allows it, so that none of its processes is missed.
    hold: on HELD, stay (without an engine, `/readyz` 503) instead of ending.
    """

    command: tuple[str, ...]
    state_dir: Path
    max_restarts: int | None = None
    grace_s: float = 25.0
    http: tuple[str, int] | None = ("127.0.0.1", 9477)
    engine_url: str | None = None
    apply_remedies: bool = False
    own_timeouts: bool = True
    private_tmp: bool = True
    own_cgroup: bool = True
    hold: bool = False
    detector: bool = True
    backoff_scale: float = 1.0
    webhooks: tuple[str, ...] = ()
    termination_message: Path | None = None
    log_segment_bytes: int = 64 << 20
    log_keep_bytes: int = 1 << 30
    bundle_log_bytes: int = 16 << 20
    keep_incidents: int = 20
    keep_prompts: bool = False
    lang: Lang = "en"

    @property
    def url_is_given(self) -> bool:
        """Whether the user said where the engine answers; what the command line says may be another engine's port."""
        return self.engine_url is not None and self.engine_url != engine_url(self.command)


def parse_http(text: str) -> tuple[str, int] | None:
    """`HOST:PORT`, `PORT` or `off`. Raises UsageError."""
    if text.lower() in ("off", "none", "no"):
        return None
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not is_whole(port) or not 0 <= int(port) <= 65535:
        raise UsageError(f"--http {text}: give HOST:PORT (for example 127.0.0.1:9477), a port, or `off`")
    return host, int(port)


def parse_engine_url(text: str) -> str:
    """`--engine-url` as given, once it is known to be usable. Raises UsageError."""
    try:
        address_of(text)
    except UsageError:
        raise UsageError(
            f"--engine-url {text}: give the address where the engine answers, for example http://127.0.0.1:8000"
        ) from None
    return text.rstrip("/")


def address_of(url: str | None) -> tuple[str, int] | None:
    """(host, port) of an engine's address, the scheme's port where it names none; None without one. Raises UsageError."""
    if url is None:
        return None
    endpoint = parse_url(url)
    try:
        endpoint.host.encode("idna")
    except UnicodeError as error:
        raise UsageError(f"{url!r} names no host ({error}); give an address like http://127.0.0.1:8000") from None
    return endpoint.host, endpoint.port


def option_of(command: tuple[str, ...] | list[str], name: str) -> str | None:
    """Value of `--name VALUE` or `--name=VALUE` in a command line; the last one counts, as in argparse.

    vLLM takes underscores for dashes (`--ssl_keyfile`), so we do.
    """
    value = None
    for index, word in enumerate(command):
        flag, equals, rest = word.partition("=")
        if flag != name and not (flag.startswith("--") and flag.replace("_", "-") == name):
            continue
        if equals:
            value = rest
        elif index + 1 < len(command):
            value = command[index + 1]
    return value


def setting_of(command: tuple[str, ...] | list[str], name: str) -> str | None:
    """Value of `--name` on the command line, else in the YAML file that `--config` names, as vLLM reads both."""
    return option_of(command, name) or _config_of(command).get(name.removeprefix("--"))


def _config_of(command: tuple[str, ...] | list[str]) -> dict[str, str]:
    """The plain values of the `--config` file, by long name; empty when it can't be read: vLLM will say so itself."""
    path = option_of(command, "--config")
    if path is None or not path.endswith((".yaml", ".yml")):
        return {}
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            data = yaml.safe_load(file.read(CONFIG_BYTES))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    values = data.items() if isinstance(data, dict) else ()
    return {str(key).replace("_", "-"): str(value) for key, value in values if isinstance(value, str | int | float)}


def serves_vllm(command: tuple[str, ...] | list[str]) -> bool:
    """Whether this looks like the command line of a vLLM server."""
    words = [Path(word).name for word in command]
    return ("vllm" in words and "serve" in words) or any("api_server" in word for word in command)


def engine_url(command: tuple[str, ...]) -> str | None:
    """Where the engine of `vllm serve ...` will answer, as its command line and `--config` file say.

    None if it doesn't look like vLLM, or answers on a Unix socket only.
    """
    if not serves_vllm(command) or setting_of(command, "--uds"):
        return None
    port = setting_of(command, "--port") or "8000"
    if not is_whole(port):
        return None
    host = setting_of(command, "--host") or "127.0.0.1"
    host = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
    scheme = "https" if setting_of(command, "--ssl-keyfile") else "http"
    url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    try:
        address_of(url)
    except UsageError:  # the engine will say what is wrong with its command line
        return None
    return url
