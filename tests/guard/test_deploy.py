"""The ready-made files say only what the product knows: its options, pages and series, and times that fit together."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from prometheus_client.parser import text_string_to_metric_families

from lifesign.cli.guard import app
from lifesign.guard.board import Board
from lifesign.guard.detector.states import State
from lifesign.guard.http import build_app

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ROUTES = {route.path for route in build_app(Board()).routes}  # type: ignore[attr-defined]


def series() -> set[str]:
    """Every name that a query may use: counters with _total, histograms with their three suffixes."""
    board = Board()
    board.metrics.deaths.labels("a", "b").inc()
    board.update(engine="OK")
    names: set[str] = set()
    for family in text_string_to_metric_families(board.metrics.page().decode()):
        names |= {sample.name for sample in family.samples}
    return names


def options() -> set[str]:
    command = typer.main.get_command(app)
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def guard_words(words: list[str]) -> list[str]:
    """The words between `guard` and `--`."""
    return words[words.index("guard") + 1 : words.index("--")]


def value_of(words: list[str], option: str) -> str:
    for index, word in enumerate(words):
        if word == option:
            return words[index + 1]
        if word.startswith(option + "="):
            return word.partition("=")[2]
    raise AssertionError(f"{option} is not in {words}")


def container() -> dict[str, Any]:
    deployment = next(iter(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())))
    pod = deployment["spec"]["template"]["spec"]
    return {**pod["containers"][0], "grace": pod["terminationGracePeriodSeconds"], "volumes": pod["volumes"]}


def docker_words() -> list[str]:
    found = re.search(r"^ENTRYPOINT (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.M)
    assert found is not None
    words: list[str] = json.loads(found.group(1))
    return words


def unit() -> dict[str, str]:
    lines = (DEPLOY / "lifesign-guard.service").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def all_commands() -> dict[str, list[str]]:
    pod = container()
    return {
        "Dockerfile": docker_words(),
        "kubernetes": [*pod["command"], *pod["args"]],
        "systemd": unit()["ExecStart"].split(),
    }


@pytest.mark.parametrize("name", ["Dockerfile", "kubernetes", "systemd"])
def test_every_option_of_guard_exists(name: str) -> None:
    words = guard_words(all_commands()[name])
    used = [word.partition("=")[0] for word in words if word.startswith("--")]
    assert used
    assert set(used) <= options()
    assert "--no-such-option" not in options()


def test_grace_fits_into_what_the_platform_gives() -> None:
    commands = all_commands()
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["vllm"]
    limits = {
        "Dockerfile": int(compose["stop_grace_period"].removesuffix("s")),
        "kubernetes": container()["grace"],
        "systemd": int(unit()["TimeoutStopSec"]),
    }
    for name, words in commands.items():
        assert float(value_of(guard_words(words), "--grace")) < limits[name], name


def test_probes_ask_pages_that_exist_on_guards_port() -> None:
    pod = container()
    ports = {port["name"]: port["containerPort"] for port in pod["ports"]}
    port = int(value_of(pod["args"], "--http").rpartition(":")[2])
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        get = pod[probe]["httpGet"]
        assert get["path"] in ROUTES
        assert ports[get["port"]] == port
    assert pod["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert pod["readinessProbe"]["httpGet"]["path"] == "/readyz"
    mounts = {mount["name"] for mount in pod["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    assert value_of(pod["args"], "--state-dir") in {mount["mountPath"] for mount in pod["volumeMounts"]}


def test_compose_is_whole() -> None:
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["vllm"]
    assert "/livez" in " ".join(service["healthcheck"]["test"])
    assert service["shm_size"] == "8g"
    ports = {text.rpartition(":")[2] for text in service["ports"]}
    assert value_of(guard_words(docker_words()), "--http").rpartition(":")[2] in ports


def queries() -> list[str]:
    rules = yaml.safe_load((DEPLOY / "prometheus-rules.yaml").read_text())["groups"][0]["rules"]
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    found = [rule["expr"] for rule in rules]
    found += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return found


def test_every_query_uses_series_that_guard_has() -> None:
    names = series()
    for query in queries():
        used = set(re.findall(r"lifesign_[a-z_]+", query))
        assert used, query
        assert used <= names, (query, used - names)
        assert query.count("(") == query.count(")")
        assert query.count("{") == query.count("}")


def test_alerts_name_states_that_exist() -> None:
    states = {state.value for state in State}
    for query in queries():
        for names in re.findall(r'state=~?"([A-Z|]+)"', query):
            assert set(names.split("|")) <= states


def test_panels_do_not_overlap() -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & cells, panel["title"]
        assert max(x for x, _ in mine) < 24
        cells |= mine


def test_the_unit_stops_guard_and_not_the_engine_behind_its_back() -> None:
    settings = unit()
    assert settings["KillMode"] == "mixed"
    assert settings["RestartPreventExitStatus"] == "2"
    assert settings["SuccessExitStatus"] == "143"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(DEPLOY / "lifesign-guard.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if "lifesign-guard.service" in line and "User" not in line]
    assert complaints == []


@pytest.mark.skipif(shutil.which("docker") is None, reason="no docker here")
def test_compose_accepts_the_file() -> None:
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    if plugin.returncode != 0:
        pytest.skip("docker compose is not installed")
    done = subprocess.run(
        ["docker", "compose", "-f", str(DEPLOY / "compose.yaml"), "config", "-q"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
