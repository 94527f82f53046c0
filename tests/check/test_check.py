"""The preflight: each check finds its fault, leaves the healthy case alone, and comes with a fix."""

from __future__ import annotations

import http.server
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lifesign.guard.preflight import collectives, machine, model_files, plan, software
from lifesign.guard.preflight.model import Finding, Plan, from_command

LIFESIGN = [sys.executable, "-m", "lifesign.cli.main"]


def levels(findings: Iterator[Finding]) -> list[str]:
    found = list(findings)
    for finding in found:
        if finding.level in ("stop", "warn"):
            assert finding.fix.en, finding
            assert finding.fix.zh, finding
    return [finding.level for finding in found]


def safetensors(path: Path, *, tensor_bytes: int = 64, cut: int = 0) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [16], "data_offsets": [0, tensor_bytes]}}).encode()
    data = struct.pack("<Q", len(header)) + header + b"\0" * tensor_bytes
    path.write_bytes(data[: len(data) - cut])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    safetensors(folder / "model.safetensors")
    return folder


def test_a_whole_model_is_fine(model: Path) -> None:
    assert levels(model_files.check_model(Plan(model=str(model)))) == ["ok"]


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"architectures": [')


def drop_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def empty_config(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def drop_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def cut_weights(folder: Path) -> None:
    safetensors(folder / "model.safetensors", cut=10)


def cut_header(folder: Path) -> None:
    safetensors(folder / "model.safetensors", cut=100)


def garbage_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 4) + b"abcd" + b"\0" * 64)


def pointer_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def empty_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def missing_shard(folder: Path) -> None:
    parts = {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))


def drop_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def pointer_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\n")


@pytest.mark.parametrize(
    ("harm", "word"),
    [
        (break_config, "no valid JSON"),
        (drop_config, "missing"),
        (empty_config, "architecture"),
        (drop_weights, "no weights"),
        (cut_weights, "is cut"),
        (cut_header, "is cut"),
        (garbage_header, "damaged"),
        (pointer_weights, "git-lfs"),
        (empty_weights, "empty"),
        (missing_shard, "1 of 2 weight files are missing"),
        (drop_tokenizer, "no tokenizer"),
        (pointer_tokenizer, "git-lfs"),
    ],
)
def test_a_harmed_model_is_named(model: Path, harm: object, word: str) -> None:
    harm(model)  # type: ignore[operator]
    found = list(model_files.check_model(Plan(model=str(model))))
    assert any(finding.level == "stop" and word in finding.what.en for finding in found), found
    assert levels(iter(found))


def test_a_path_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (finding,) = model_files.check_model(Plan(model=str(tmp_path / "not-there")))
    assert finding.level == "stop"
    assert "there" in finding.what.en


class Hub(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        codes = {"/api/models/org/good": 200, "/api/models/org/gated": 401, "/api/models/org/broken": 503}
        self.send_response(codes.get(self.path, 404))
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("name", "level", "word"),
    [
        ("org/good", "ok", "has org/good"),
        ("org/gated", "stop", "gated"),
        ("org/none", "stop", "knows no model"),
        ("org/broken", "stop", "503"),
    ],
)
def test_the_hub_or_its_mirror(hub: str, tmp_path: Path, name: str, level: str, word: str) -> None:
    environment = {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path)}
    (finding,) = model_files.check_model(Plan(model=name, environment=environment))
    assert finding.level == level
    assert word in finding.what.en


def test_a_hub_that_cannot_be_reached_and_offline_mode(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{free.getsockname()[1]}"
    base = {"HF_ENDPOINT": dead, "HF_HOME": str(tmp_path)}
    (finding,) = model_files.check_model(Plan(model="org/m", environment=base, timeout_s=3.0))
    assert finding.level == "stop"
    assert "HF_ENDPOINT" in finding.fix.en
    (finding,) = model_files.check_model(Plan(model="org/m", environment={**base, "HF_HUB_OFFLINE": "1"}))
    assert "HF_HUB_OFFLINE" in finding.what.en


def test_a_cached_repository_is_looked_into(model: Path, tmp_path: Path) -> None:
    snapshots = tmp_path / "hf" / "hub" / "models--org--m" / "snapshots"
    snapshots.mkdir(parents=True)
    model.rename(snapshots / "abc")
    environment = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    assert levels(model_files.check_model(Plan(model="org/m", environment=environment))) == ["ok"]
    cut_weights(snapshots / "abc")
    assert "stop" in levels(model_files.check_model(Plan(model="org/m", environment=environment)))


def test_a_taken_port_names_its_holder() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (finding,) = machine.check_port(Plan(port=port))
        assert finding.level == "stop"
        assert f"pid {os.getpid()}" in finding.what.en
    assert levels(machine.check_port(Plan(port=port))) == ["ok"]


def test_low_limits_are_named() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
        assert "stop" in levels(machine.check_limits(Plan()))
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
        assert "warn" in levels(machine.check_limits(Plan()))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_shared_memory_that_is_missing(tmp_path: Path) -> None:
    (finding,) = machine.check_shm(Plan(), tmp_path / "none")
    assert finding.level == "stop"
    assert "--shm-size" in finding.fix.en


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    (locked / "file").write_text("x")
    # A path below a file can't be written by anybody, root included.
    environment = {**os.environ, "VLLM_CACHE_ROOT": "/proc/none/vllm"}
    found = list(machine.check_homes(Plan(environment=environment)))
    assert any(finding.level == "stop" and "VLLM_CACHE_ROOT" in finding.fix.en for finding in found)


def test_memory_that_does_not_suffice() -> None:
    assert levels(machine.check_memory(Plan(environment={"VLLM_CPU_KVCACHE_SPACE": "100000"}), 0)) in (
        ["stop"],
        ["warn"],
    )
    assert levels(machine.check_memory(Plan(), 0)) == ["ok"]


VERSIONS = {
    "python": "3.11.7",
    "python_ok": True,
    "requires_python": "<3.14,>=3.10",
    "packages": {"vllm": "0.11.0", "torch": "2.8.0", "transformers": "4.57.1"},
    "unmet": [],
}


@pytest.mark.parametrize(
    ("change", "level", "word"),
    [
        ({}, "ok", "vLLM 0.11.0"),
        ({"packages": {"vllm": None}}, "stop", "not installed"),
        ({"python_ok": False, "python": "3.9.1"}, "stop", "wants Python"),
        ({"unmet": [["torch", "2.9.0", "==2.8.0"]]}, "stop", "torch==2.8.0"),
        ({"unmet": [["xformers", "0.1", "==0.2"]]}, "warn", "xformers==0.2"),
        ({"unmet": [["torchaudio", None, "==2.8.0"]]}, "ok", "vLLM"),
        ({"packages": {"vllm": "0.11.0", "torch": "2.8.0", "transformers": "5.0.1"}}, "stop", "transformers 5"),
        ({"packages": {"vllm": "0.32.0", "torch": "2.8.0", "transformers": "5.0.1"}}, "ok", "vLLM 0.32.0"),
    ],
)
def test_versions_are_judged(change: dict[str, object], level: str, word: str) -> None:
    found = list(software.judge_versions({**VERSIONS, **change}, "/usr/bin/python3"))
    assert found[0].level == level
    assert word in found[0].what.en


@pytest.mark.parametrize(
    ("version", "flags", "dtype", "warned"),
    [
        ("0.32.0+cpu", ["avx2", "amx_tile"], None, True),
        ("0.30.0+cpu", ["amx_tile"], "bfloat16", True),
        ("0.27.1+cpu", ["amx_tile"], None, False),
        ("0.32.0+cpu", ["avx512f"], None, False),
        ("0.32.0+cpu", ["amx_tile"], "float32", False),
        ("0.32.0", ["amx_tile"], None, False),
        (None, ["amx_tile"], None, False),
    ],
)
def test_amx_with_the_cpu_build(version: str | None, flags: list[str], dtype: str | None, warned: bool) -> None:
    found = list(software.judge_tiles({"packages": {"vllm": version}}, flags, dtype))
    assert [one.level for one in found] == ["warn"] * warned
    assert all("--dtype float32" in one.fix.en and "--dtype float32" in one.fix.zh for one in found)


def test_a_command_that_is_none() -> None:
    (finding,) = software.check_versions(Plan(command=("/no/such/vllm", "serve")))
    assert finding.level == "stop"


def test_known_bad_variables() -> None:
    environment = {"LD_PRELOAD": "/usr/lib/libvgpu.so", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert levels(software.check_variables(Plan(environment=environment, ranks=2))) == ["warn", "warn"]
    assert levels(
        software.check_variables(Plan(environment=environment, ranks=2, command=("--disable-custom-all-reduce",)))
    ) == ["warn"]
    assert levels(software.check_variables(Plan())) == []


def test_the_command_line_goes_through_lint() -> None:
    found = list(software.check_command_line(Plan(command=("vllm", "serve", "m", "--use-deepgemm"))))
    assert any(finding.level == "stop" and "VLLM_USE_DEEP_GEMM" in finding.fix.en for finding in found)


def test_the_command_fills_the_plan() -> None:
    filled = from_command(
        Plan(command=("vllm", "serve", "org/m", "--port=81", "-tp", "4", "--pipeline-parallel-size", "2"))
    )
    assert (filled.model, filled.port, filled.ranks) == ("org/m", 81, 8)
    assert (
        from_command(Plan(command=("python", "-m", "vllm.entrypoints.openai.api_server", "--model", "x"))).model == "x"
    )


@pytest.mark.parametrize(
    ("words", "model"),
    [
        ("--port 81 org/m", "org/m"),
        ("--enable-prefix-caching org/m --port 81", "org/m"),
        ("--no-enable-prefix-caching --port=81 org/m", "org/m"),
        ("--served-model-name a b --port 81 org/m", "org/m"),
        ("--enforce_eager -tp 2 org/m", "org/m"),
        ("--port 81", None),
        ("--served-model-name a b", None),
        ("--no-such-option org/m", None),
        ("--model org/m --port 81", "org/m"),
    ],
)
def test_the_model_may_stand_behind_options(words: str, model: str | None) -> None:
    assert from_command(Plan(command=("vllm", "serve", *words.split()))).model == model


def test_a_configuration_file_fills_the_plan(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("model: org/m\nport: 83\ntensor_parallel_size: 2\n")
    filled = from_command(Plan(command=("vllm", "serve", "--config", str(file))))
    assert (filled.model, filled.port, filled.ranks) == ("org/m", 83, 2)
    filled = from_command(Plan(command=("vllm", "serve", "org/n", "--config", str(file), "--port", "84")))
    assert (filled.model, filled.port, filled.ranks) == ("org/n", 84, 2)


def test_one_broken_check_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(plan: Plan) -> Iterator[Finding]:
        raise RuntimeError("boom")

    monkeypatch.setattr(machine, "check_shm", broken)
    found = plan.run(Plan(offline=True))
    assert any("boom" in finding.what.en for finding in found)
    assert any(finding.check == "ulimit -n" for finding in found)


def test_the_culprit_is_in_every_failing_pair_and_in_no_working_one() -> None:
    assert collectives.culprit([(0, 2), (1, 2)], [(0, 1)]) == 2
    assert collectives.culprit([(0, 1)], []) is None
    assert collectives.culprit([(0, 1), (2, 3)], []) is None


@pytest.mark.parametrize("nodes", range(2, 10))
def test_in_the_tournament_everybody_meets_everybody_once(nodes: int) -> None:
    rounds = collectives.tournament(nodes)
    games = [pair for pairs in rounds for pair in pairs]
    assert sorted(games) == [(left, right) for left in range(nodes) for right in range(left + 1, nodes)]
    for pairs in rounds:
        members = [member for pair in pairs for member in pair]
        assert len(members) == len(set(members))


def run_check(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LIFESIGN, "check", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "LC_ALL": "C", **environment},
    )


def test_the_command_says_what_would_stop_and_exits_1(model: Path) -> None:
    cut_weights(model)
    done = run_check("--model", str(model), "--format", "json")
    value = json.loads(done.stdout)
    assert done.returncode == 1
    assert value["would_stop"] is True
    assert any("is cut" in finding["what"] for finding in value["findings"])
    done = run_check("--model", str(model), "--lang", "zh")
    assert "被截断" in done.stdout


def test_the_command_is_content_with_a_good_machine(model: Path) -> None:
    done = run_check("--model", str(model))
    assert done.returncode == 0, done.stdout
    assert "whole" in done.stdout


@pytest.mark.parametrize("arguments", [("--node-rank", "1"), ("--format", "xml")])
def test_bad_input(arguments: tuple[str, ...]) -> None:
    done = run_check(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_offline_asks_nobody_and_forbids_nothing(tmp_path: Path) -> None:
    cache = {"HF_HUB_CACHE": str(tmp_path)}
    (asked_not,) = model_files.check_model(Plan(model="org/none", environment=cache, offline=True))
    assert asked_not.level == "note"
    assert "HF_HUB_OFFLINE" not in asked_not.what.en, "it isn't set: nobody can unset it"
    (forbidden,) = model_files.check_model(Plan(model="org/none", environment={**cache, "HF_HUB_OFFLINE": "1"}))
    assert forbidden.level == "stop"
    assert "HF_HUB_OFFLINE" in forbidden.fix.en


def test_a_bad_option_is_named_and_the_fix_is_no_bad_option() -> None:
    found = list(software.check_command_line(Plan(command=("vllm", "serve", "m", "--bad-flag", "--port", "abc"))))
    assert [one.level for one in found] == ["stop", "stop"]
    for one, name in zip(found, ("--bad-flag", "--port"), strict=True):
        assert one.what.en.startswith(f"{name}: ")
        assert one.what.zh.startswith(f"{name}：")
        assert one.fix.en
        assert name not in one.fix.en
    assert [one.level for one in software.check_command_line(Plan(command=("vllm", "serve", "m")))] == ["ok"]


@pytest.mark.parametrize(
    ("options", "level"),
    [
        (("--port", "99999"), "stop"),
        (("--port", "65535000000"), "stop"),
        (("--host", "a..b"), "stop"),
        (("--host", "192.0.2.1"), "stop"),
        (("--host", "127.0.0.1"), "ok"),
    ],
)
def test_an_address_that_is_none_would_stop_the_engine(options: tuple[str, ...], level: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ("vllm", "serve", "m", *(options if "--port" in options else ("--port", str(port), *options)))
    assert levels(machine.check_port(from_command(Plan(command=command)))) == [level]


def test_without_a_command_the_newcomer_learns_what_is_missing() -> None:
    (note,) = software.check_versions(Plan())
    assert note.level == "note"
    assert "lifesign check -- vllm serve" in note.fix.en
    assert not any("not given" in one.what.en for one in software.check_versions(Plan(command=("nosuch",))))
    (empty,) = software.check_versions(Plan(command=("",)))
    assert not empty.what.en.startswith(":")


def test_another_language_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lifesign.cli.main", "check", "--lang", "fr"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "neither en nor zh" in done.stderr
    assert done.stdout == ""


def test_ranks_without_torch_get_a_fix_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "_python_with_torch", lambda plan: None)
    (without,) = collectives.check_all_reduce(Plan(ranks=2))
    (given,) = collectives.check_all_reduce(Plan(ranks=2, command=("vllm", "serve", "m")))
    assert "after --" in without.fix.en
    assert "after --" not in given.fix.en
