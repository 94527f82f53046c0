"""`lifesign diagnose` as a user meets it: exit codes, bad input, streams, hostile text."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "corpus" / "lab"
OOM = LAB / "oom_serving_mlp.log"
STOP = LAB / "sigterm_clean.log"


def run(*args: str, data: bytes | None = None, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "lifesign.cli.main", *args],
        input=data,
        capture_output=True,
        timeout=120,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8", "COLUMNS": "100", **(env or {})},
    )


def one_sentence(result: subprocess.CompletedProcess[bytes]) -> str:
    """The error text; never a traceback, nothing on standard output."""
    text = result.stderr.decode()
    assert result.returncode == 2
    assert result.stdout == b""
    assert "Traceback" not in text
    assert text.startswith("lifesign: ") or "Usage" in text
    return text


def test_a_death_exits_1_and_names_the_cause() -> None:
    result = run("diagnose", str(OOM))
    assert result.returncode == 1
    text = result.stdout.decode()
    assert "device-oom / serving" in text
    assert "oom_serving_mlp.log:184" in text
    assert "\x1b" not in text
    assert result.stderr == b""


def test_a_stop_exits_0() -> None:
    result = run("diagnose", str(STOP))
    assert result.returncode == 0
    assert b"not-a-crash" in result.stdout


def test_standard_input_and_dash() -> None:
    data = OOM.read_bytes()
    for args in (("diagnose",), ("diagnose", "-")):
        result = run(*args, data=data)
        assert result.returncode == 1
        assert b"device-oom / serving" in result.stdout


def test_folder_and_glob(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(OOM.read_bytes())
    (tmp_path / "readme.rst").write_text("not a log")
    for argument in (str(tmp_path), str(tmp_path / "*.log")):
        result = run("diagnose", argument, "--format", "json")
        assert result.returncode == 1
        assert json.loads(result.stdout)["source"]["paths"] == [str(tmp_path / "a.log")]


def test_language_from_locale_and_option() -> None:
    assert "死因" in run("diagnose", str(OOM), env={"LC_ALL": "zh_CN.UTF-8"}).stdout.decode()
    assert "死因" in run("diagnose", str(OOM), "--lang", "zh").stdout.decode()
    assert "死因" not in run("diagnose", str(OOM), "--lang", "en", env={"LC_ALL": "zh_CN.UTF-8"}).stdout.decode()


@pytest.mark.parametrize("format", ["markdown", "html", "sarif", "json", "terminal"])
def test_formats_and_output_file(format: str, tmp_path: Path) -> None:
    target = tmp_path / "report.out"
    result = run("diagnose", str(OOM), "--format", format, "--output", str(target))
    assert result.returncode == 1
    assert result.stdout == b""
    text = target.read_text(encoding="utf-8")
    assert "device-oom" in text
    if format == "sarif":
        run_ = json.loads(text)["runs"][0]
        assert run_["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] == 184


def test_json_follows_the_shipped_schema() -> None:
    schema = json.loads((ROOT / "src" / "lifesign" / "report" / "schema.json").read_text(encoding="utf-8"))
    for name in ("oom_serving_mlp.log", "sigterm_clean.log", "kill9_apiserver_serving.log", "bad_flag.log"):
        report = json.loads(run("diagnose", str(LAB / name), "--format", "json").stdout)
        jsonschema.validate(report, schema)
        assert report["schema"] == "lifesign.report/1"
    report["verdict"].pop("cause")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report, schema)


def test_version_override_reaches_the_remedies() -> None:
    old = json.loads(
        run("diagnose", str(LAB / "rpc_timeout_slow_busy.log"), "--format", "json", "--vllm-version", "0.8.5").stdout
    )
    new = json.loads(run("diagnose", str(LAB / "rpc_timeout_slow_busy.log"), "--format", "json").stdout)
    knobs = {item["knob"] for item in new["verdict"]["remedies"]}
    assert "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS" in knobs
    assert "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS" not in {item["knob"] for item in old["verdict"]["remedies"]}
    assert old["facts"]["version"] == "0.8.5"


def test_the_users_own_command_is_corrected() -> None:
    log = str(LAB / "oom_warmup_sampler.log")
    command = "VLLM_LOGGING_LEVEL=INFO vllm serve /m/x --max-num-seqs 256 --port 8123"
    verdict = json.loads(run("diagnose", log, "--command", command, "--format", "json").stdout)["verdict"]
    seqs = next(item["value"] for item in verdict["remedies"] if item["knob"] == "--max-num-seqs")
    assert 1 <= int(seqs) < 256
    assert verdict["command"] == f"VLLM_LOGGING_LEVEL=INFO vllm serve /m/x --max-num-seqs {seqs} --port 8123"
    assert verdict["changes"] == [f"--max-num-seqs: 256 -> {seqs}"]


def test_extra_evidence_decides(tmp_path: Path) -> None:
    """A worker killed without a word; the kernel log beside it says by whom."""
    kernel = tmp_path / "dmesg.txt"
    kernel.write_text(
        "[51234.100000] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n"
        "[51234.200000] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/docker/4f1,task_memcg=/docker/4f1,task=VLLM::Worker,pid=14021,uid=0\n"
        "[51234.300000] Memory cgroup out of memory: Killed process 14021 (VLLM::Worker) total-vm:9000000kB, anon-rss:3900000kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:9000kB oom_score_adj:0\n"
    )
    log = str(LAB / "cgroup_oom_serving.log")
    alone = json.loads(run("diagnose", log, "--format", "json").stdout)["verdict"]
    both = json.loads(run("diagnose", log, "--with", str(kernel), "--format", "json").stdout)["verdict"]
    assert alone["cause"] == "silent-death"
    assert both["cause"] == "host-oom"
    assert any(line["path"] == str(kernel) for line in both["evidence"] if line["role"] == "root")


def test_a_container_s_command_is_corrected_in_place() -> None:
    sample = str(ROOT / "samples" / "engine-dead-sampler-oom.log")
    command = "docker run --gpus all vllm/vllm-openai:v0.8.5 --model x --max-num-seqs 256"
    verdict = json.loads(run("diagnose", sample, "--command", command, "--format", "json").stdout)["verdict"]
    # The log's array was 2.00 GiB for 4 sequences: 256 of them, or 64, can't fit into 1.21 GiB either.
    assert verdict["command"] == command.replace("256", "1")
    assert verdict["changes"] == ["--max-num-seqs: 256 -> 1"]


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("ls -la", "starts no vLLM"),
        ("torchrun x.py", "starts no vLLM"),
        ("vllm serve x 'unclosed", "quote"),
        ("", "starts no vLLM"),
    ],
)
def test_a_command_that_can_not_be_corrected_is_refused(command: str, part: str) -> None:
    text = one_sentence(run("diagnose", str(OOM), "--command", command))
    assert "--command" in text
    assert part in text
    assert "无法修改 --command" in one_sentence(run("diagnose", str(OOM), "--lang", "zh", "--command", command))


def test_a_wrapped_command_is_corrected() -> None:
    command = "env A=1 uv run vllm serve m --max-num-seqs 256"
    sample = str(ROOT / "samples" / "engine-dead-sampler-oom.log")
    verdict = json.loads(run("diagnose", sample, "--command", command, "--format", "json").stdout)["verdict"]
    assert verdict["command"] == "env A=1 uv run vllm serve m --max-num-seqs 1"


def test_a_version_that_is_none_is_refused_and_a_nightly_is_not() -> None:
    assert "'banana' is no vLLM release" in one_sentence(run("diagnose", str(OOM), "--vllm-version", "banana"))
    nightly = json.loads(run("diagnose", str(OOM), "--vllm-version", "nightly", "--format", "json").stdout)
    notes = {item["note"] for item in nightly["verdict"]["remedies"] if item["knob"]}
    assert notes == {"not verified for nightly: newer than the catalog, which ends at 0.33.0"}


def test_missing_file() -> None:
    assert "no such file" in one_sentence(run("diagnose", "/nonexistent/vllm.log"))


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty.log").touch()
    assert "empty" in one_sentence(run("diagnose", str(tmp_path / "empty.log")))


def test_empty_standard_input() -> None:
    assert "empty" in one_sentence(run("diagnose", "-", data=b""))


def test_folder_without_logs(tmp_path: Path) -> None:
    assert "no log files" in one_sentence(run("diagnose", str(tmp_path)))


def test_binary_file(tmp_path: Path) -> None:
    (tmp_path / "core.log").write_bytes(b"\x7fELF" + bytes(range(256)) * 20)
    assert "binary" in one_sentence(run("diagnose", str(tmp_path / "core.log")))


def test_not_really_gzip(tmp_path: Path) -> None:
    (tmp_path / "x.log.gz").write_bytes(b"\x1f\x8b" + b"nonsense" * 10)
    assert "can't be decompressed" in one_sentence(run("diagnose", str(tmp_path / "x.log.gz")))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "secret.log").write_bytes(OOM.read_bytes())
    (tmp_path / "secret.log").chmod(0)
    assert "no permission" in one_sentence(run("diagnose", str(tmp_path / "secret.log")))


def test_unknown_format_and_language() -> None:
    assert "unknown format" in one_sentence(run("diagnose", str(OOM), "--format", "pdf"))
    assert "unknown language" in one_sentence(run("diagnose", str(OOM), "--lang", "xx"))


def test_output_to_an_impossible_place() -> None:
    assert "can't write" in one_sentence(run("diagnose", str(OOM), "--output", "/nonexistent/x.json"))


def test_unknown_option_is_a_usage_error() -> None:
    result = run("diagnose", "--no-such-option", str(OOM))
    assert result.returncode == 2
    assert b"Traceback" not in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        '127.0.0.1 - - [30/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 612\n' * 50,
        "2026-11-30 10:00:00 nginx[1]: worker process 7 exited on signal 9\n" * 3,
        "Traceback (most recent call last):\n  File \"app.py\", line 1, in <module>\n    import flask\nModuleNotFoundError: No module named 'flask'\n",
        "hello\nworld\n",
        "\n\n\n",
    ],
)
def test_log_of_another_program_is_no_guess(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.log"
    path.write_text(text)
    verdict = json.loads(run("diagnose", str(path), "--format", "json").stdout)["verdict"]
    assert verdict["cause"] in ("not-a-crash", "insufficient-log", "unclassified")
    assert verdict["certainty"] != "established"


# -- hostile text ------------------------------------------------------------------------------------------------------

EVIL = "\x1b]0;pwned\x07\x1b[2J\x1b[31m<script>alert(1)</script>[bold red]x[/bold red]\u202egnp.exe`rm -rf /`|$(x)"


def test_escapes_html_and_markup_are_shown_as_text(tmp_path: Path) -> None:
    text = OOM.read_text(encoding="utf-8").replace("CUDA out of memory. Tried", f"CUDA out of memory. {EVIL} Tried")
    path = tmp_path / "evil.log"
    path.write_text(text, encoding="utf-8")
    terminal = run("diagnose", str(path)).stdout.decode()
    assert "\x1b" not in terminal
    assert "\u202e" not in terminal
    assert "[bold red]" in terminal or "alert(1)" in terminal
    html = run("diagnose", str(path), "--format", "html").stdout.decode()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    markdown = run("diagnose", str(path), "--format", "markdown").stdout.decode()
    for line in markdown.split("\n"):
        outside = re.sub(r"(`+).*?\1", "", line)
        assert "<script>" not in outside


def test_secrets_and_prompts_stay_out(tmp_path: Path) -> None:
    text = OOM.read_text(encoding="utf-8")
    text = text.replace(
        "CUDA out of memory. Tried",
        "CUDA out of memory. token=hf_abcdefghijklmnopqrstuvwxyz api_key='sk-verysecret1234567890' prompt: 'my private life' Tried",
    )
    path = tmp_path / "secret.log"
    path.write_text(text, encoding="utf-8")
    for format in ("terminal", "json", "markdown", "html", "sarif"):
        shown = run("diagnose", str(path), "--format", format).stdout.decode()
        for secret in ("hf_abcdefghij", "sk-verysecret", "my private life"):
            assert secret not in shown, format
    assert "hf_abcdefghij" in run("diagnose", str(path), "--format", "json", "--no-redact").stdout.decode()


def test_lines_of_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    lines = OOM.read_bytes().split(b"\n")
    lines.insert(100, b"(EngineCore pid=1) INFO 11-30 10:00:00 [x.py:1] " + b"A" * 30_000_000)
    path.write_bytes(b"\n".join(lines))
    report = json.loads(run("diagnose", str(path), "--format", "json").stdout)
    assert report["verdict"]["cause"] == "device-oom"
    assert report["coverage"]["lines_cut"] >= 1


def hostile_lines() -> list[str]:
    """Texts that blow up careless patterns: long runs of what a pattern may repeat."""
    pieces = [
        "a" * 15_000, " " * 15_000, "(" * 15_000, "'" * 15_000, "(EngineCore " + "x=1 " * 4_000, "ERROR 11-30 10:00:00 [" + "a/" * 7_000,
        "  File \"" + "/a" * 7_000, "[" * 15_000, "0%|" + "#" * 9_000 + "| 1/2 [", "Worker failed with error '" + "'" * 9_000,
        "CUDA out of memory. Tried to allocate " + "9" * 9_000, "prompt: '" + "\\" * 9_000, "api_key=" + "[" * 9_000,
        "1.1." * 4_000, "a." * 7_000 + "Error: x", "\\" * 15_000, "=" * 15_000, "-" * 15_000, "é" * 9_000, "%" * 9_000, "Killed process " + "1 (" * 4_000,
        "{\"log\": " + "[" * 9_000, "vllm serve " + "--x " * 3_000, "hf_" + "a" * 15_000, "eyJ" + "a." * 7_000, "http://" + "a:" * 7_000,
    ]  # fmt: skip
    return pieces + [f"(Worker_TP0 pid=1) ERROR 11-30 10:00:00 [x.py:1] {piece}" for piece in pieces]


def test_no_pattern_blows_up(tmp_path: Path) -> None:
    """Each line alone and all together end within the bound of the call; a catastrophic pattern would take hours."""
    path = tmp_path / "hostile.log"
    path.write_text("\n".join(hostile_lines() * 3), encoding="utf-8")
    result = run("diagnose", str(path), "--format", "json")
    assert result.returncode in (0, 1)
    json.loads(result.stdout)


def test_random_bytes_never_raise(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    data = OOM.read_bytes()
    from lifesign.report.diagnose import diagnose_paths

    for number in range(25):
        mutated = bytearray(data[: rng.randrange(2_000, len(data))])
        for _ in range(rng.randrange(1, 400)):
            mutated[rng.randrange(len(mutated))] = rng.randrange(32, 256)
        path = tmp_path / f"{number}.log"
        path.write_bytes(bytes(mutated))
        report = diagnose_paths([str(path)])
        assert report.source.lines > 0


def test_reader_that_goes_away() -> None:
    """`lifesign diagnose ... | head -1` ends without a traceback."""
    command = f"{sys.executable} -m lifesign.cli.main diagnose {OOM} --format json | head -1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False)
    assert b"Traceback" not in result.stderr


def test_gzip_on_standard_input() -> None:
    assert run("diagnose", "-", data=gzip.compress(OOM.read_bytes())).returncode == 1
