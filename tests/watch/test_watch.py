"""`lifesign watch` beside small engines of real processes: what it sees, says, keeps, and what it must not do."""

from __future__ import annotations

import http.server
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from watching import Engine, Watch

Start = Callable[..., Engine]
Begin = Callable[..., Watch]


def events(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_stopped_worker_is_named_and_left_alone(engine: Start, watch: Begin, tmp_path: Path) -> None:
    one = engine()
    seen = watch(
        one.server, "--json", "--every", "1", "--for", "120", "--save", tmp_path / "kept", "--record", tmp_path / "r"
    )
    seen.until('"view": "HEALTHY"')
    one.signal(one.workers[1], signal.SIGSTOP)
    stopped = json.loads(seen.until('"new": "STOPPED"'))
    assert stopped["wall_s"] <= 3.0
    assert f"pid {one.workers[1]}" in stopped["text"]
    assert "worker 1" in stopped["text"]
    assert str(one.workers[0]) not in stopped["text"]
    dead = json.loads(seen.until('"new": "DEAD"'))
    assert 12.0 <= dead["wall_s"] <= 20.0
    assert state_of(one.workers[1]) == "T"  # nobody sent it a signal
    one.signal(one.workers[1], signal.SIGCONT)
    seen.until('"came_back"')
    seen.process.send_signal(signal.SIGINT)
    code, out, err = seen.finish()
    assert (code, err) == (1, "")
    heard = events(out)
    assert heard[0]["event"] == "watching"
    assert {member["name"] for member in heard[0]["processes"]} >= {"EngineCore", "worker 0", "worker 1"}  # type: ignore[attr-defined]
    kept = sorted((tmp_path / "kept").iterdir())
    assert len(kept) >= 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
    assert "=== worker 1" in kept[0].read_text()
    told = subprocess.run(
        [sys.executable, "-m", "lifesign.cli.main", "watch", "--replay", str(tmp_path / "r"), "--lang", "en"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.returncode == 1
    assert "other commands" not in told.stderr
    assert "STOPPED" in told.stdout
    assert "DEAD" in told.stdout


def test_a_killed_worker_ends_the_watch(engine: Start, watch: Begin) -> None:
    one = engine("--no-http")
    seen = watch(one.core, "--every", "1", "--lang", "en")
    seen.until("HEALTHY")
    one.signal(one.workers[0], signal.SIGKILL)
    code, out, err = seen.finish()
    assert code == 1
    assert "DEAD" in out
    assert "a process of the engine is gone" in out
    assert "metrics page: none found" in err


def test_without_beacon_the_page_shows_progress(engine: Start, watch: Begin) -> None:
    one = engine("--no-beacon")
    seen = watch(f"http://127.0.0.1:{one.port}", "--every", "1", "--lang", "zh")
    seen.until("HEALTHY  2 个在跑")
    one.signal(one.core, signal.SIGSTOP)
    line = seen.until("STOPPED")
    assert "被暂停" in line
    assert str(one.core) in line
    one.signal(one.core, signal.SIGCONT)
    seen.until(" OK ")
    seen.process.send_signal(signal.SIGINT)
    code, _, err = seen.finish()
    assert code == 0
    assert "信标：没有" in err


def test_a_page_of_another_release_is_said_and_watched(engine: Start, watch: Begin) -> None:
    one = engine("--old-metrics")
    code, out, err = watch(one.server, "--for", "4", "--every", "1", "--lang", "en").finish()
    assert code == 0
    assert "the page lacks vllm:generation_tokens_total" in err
    assert "progress can't be seen there" in err
    assert "HEALTHY" in out  # the beacon still tells


def test_live_view_on_a_terminal(engine: Start) -> None:
    one = engine("--no-http")
    mine, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(
        [sys.executable, "-m", "lifesign.cli.main", "watch", str(one.core), "--for", "6", "--lang", "en"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env=env,
    )
    os.close(theirs)
    shown = b""
    try:
        while True:
            data = os.read(mine, 65536)
            if not data:
                break
            shown += data
    except OSError:
        pass
    finally:
        os.close(mine)
    assert process.wait(60) == 0
    assert b"HEALTHY" in shown
    assert b"EngineCore" in shown


class Answer(http.server.BaseHTTPRequestHandler):
    status, body = 200, b"# HELP\nprocess_cpu_seconds_total 3\n"

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[int]:
    """A web server that isn't vLLM."""
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    yield web.server_port
    web.shutdown()
    web.server_close()


def refused(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "lifesign.cli.main", "watch", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("lifesign: ")
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def test_bad_targets_get_a_sentence(stranger: int, tmp_path: Path) -> None:
    assert "there is no process 4194999" in refused(4194999)
    assert "isn't part of a vLLM engine" in refused(os.getpid())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert "nothing answers at" in refused(f"http://127.0.0.1:{port}")
    assert "isn't vLLM's" in refused(f"127.0.0.1:{stranger}")
    assert "neither a pid nor a URL" in refused("ftp://host/")
    assert "is no URL" in refused("http://host:99999999/")
    assert "--lang" in refused(os.getpid(), "--lang", "fr")
    assert "--every" in refused(os.getpid(), "--every", "-1")
    assert "can't be read" in refused(tmp_path / "none", "--replay")
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("what\n")
    assert f"{rubbish}:1" in refused(rubbish, "--replay")


def test_a_page_that_fails_gets_its_status(stranger: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answer, "status", 404)
    assert "answers HTTP 404" in refused(f"http://127.0.0.1:{stranger}")


def test_recording_into_nowhere_is_refused(engine: Start, tmp_path: Path) -> None:
    one = engine("--no-http")
    assert "can't be written" in refused(one.core, "--record", tmp_path / "no" / "where", "--for", "1")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_another_users_engine_is_watched_as_far_as_allowed(engine: Start, watch: Begin) -> None:
    one = engine()
    try:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "lifesign.cli.main",
                "watch",
                str(one.server),
                "--every",
                "1",
                "--lang",
                "en",
                "--for",
                "60",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            user=65534,
            group=65534,
            extra_groups=[],
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
    except PermissionError:
        pytest.skip("another user can't run this Python here")
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        seen = [process.stdout.readline()]
        if not seen[0]:
            pytest.skip(f"another user can't run this Python here: {process.stderr.read()[:200]}")
        assert "progress can't be seen" in seen[0]
        one.signal(one.workers[0], signal.SIGSTOP)
        while "STOPPED" not in seen[-1]:
            seen.append(process.stdout.readline())
            assert seen[-1], seen
        assert str(one.workers[0]) in seen[-1]
        assert not [line for line in seen if "IDLE" in line]
    finally:
        process.kill()
        _, err = process.communicate(timeout=20)
    assert "another user's" in err
    assert "--metrics URL" in err
    assert "Traceback" not in err
