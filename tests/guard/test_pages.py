"""Whose pages are these? Only what an engine's own processes serve is its progress, and only they are asked for a token."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lifesign.guard import procs
from lifesign.guard.blackbox import capture_in_background
from lifesign.guard.board import Board
from lifesign.guard.context import Context
from lifesign.guard.detector.core import Detector
from lifesign.guard.detector.events import CanaryAnswered
from lifesign.guard.environment import engine_environment
from lifesign.guard.helpers import Helpers
from lifesign.guard.inbox import Inbox
from lifesign.guard.life import Life
from lifesign.guard.notify import Notifier
from lifesign.guard.sensor import PAGE_PATIENCE_S, Sensor
from lifesign.guard.settings import Settings, engine_url, option_of, setting_of
from lifesign.guard.statedir import StateDir
from lifesign.guard.voice import Voice

from ..engine_support import free_port
from .harness import wait_until

BUSY = Path(__file__).with_name("busy_engine.py")


class Stranger(http.server.BaseHTTPRequestHandler):
    """Another vLLM engine, in this process; `asked` is what came in."""

    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()
        text = '{"data": [{"id": "m"}]}' if "models" in self.path else "vllm:num_requests_running 7\n"
        self.wfile.write(text.encode())

    do_POST = do_GET

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[int]:
    Stranger.asked = []
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    yield web.server_port
    web.shutdown()
    web.server_close()


Start = Callable[[list[str]], Life]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a command and gives it as a life."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(command: list[str]) -> Life:
        running.append(subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL))
        top = procs.identify(running[-1].pid)
        assert top is not None
        life = Life("1-x", 1, top, lambda: 0.0)
        life.start("APIServer")
        return life

    yield begin
    for process in running:
        process.terminate()
        process.wait(20)


def engine_at(start: Start, port: int, folder: Path) -> Life:
    """An engine that listens on `port` by now."""
    control = folder / "control.json"
    control.write_text(json.dumps({"step_cpu_s": 0.01}))
    life = start([sys.executable, str(BUSY), "--port", str(port), "--control", str(control)])
    wait_until(lambda: _listens(life, port), "the engine to listen")
    return life


def _listens(life: Life, port: int) -> bool:
    from lifesign.guard.sockets import listeners

    life.scan()
    return bool(listeners(port, [member.id.pid for member in life.alive()]))


def sensor_of(life: Life, folder: Path, port: int, url: str | None = None) -> Sensor:
    """A sensor of an engine whose command line names `port`; `url` is what the user said instead."""
    command = ("vllm", "serve", "m", "--port", str(port))
    settings = Settings(command, folder / "state", engine_url=url or engine_url(command))
    state = StateDir(settings.state_dir)
    context = Context(
        settings, state, Helpers(), Inbox(), Voice("en"), Board(), Notifier((), {}, lambda text: None), lambda: 0.0
    )
    sensor = Sensor(life, None, context, Detector())
    sensor.serve()
    return sensor


def look(sensor: Sensor, *times_s: float) -> None:
    for now_s in times_s:
        sensor._find_page(now_s)
        if sensor._seeking is not None:
            sensor._seeking.join(20)


def test_the_port_of_the_command_line_counts_where_we_listen_there(start: Start, tmp_path: Path) -> None:
    port = free_port()
    sensor = sensor_of(engine_at(start, port, tmp_path), tmp_path, port)
    look(sensor, 0.0)
    assert sensor.page == f"http://127.0.0.1:{port}"
    wait_until(lambda: sensor._observer.metrics is not None and sensor._observer.metrics.last, "a page")
    sensor.stop()


def test_another_engine_on_that_port_is_left_alone_and_ours_is_found(
    start: Start, stranger: int, tmp_path: Path
) -> None:
    port = free_port()
    sensor = sensor_of(engine_at(start, port, tmp_path), tmp_path, stranger)
    look(sensor, 0.0, 1.0)
    assert sensor.page == f"http://127.0.0.1:{port}"
    sensor.ask(5.0)
    wait_until(lambda: sensor.events, "the answer to our request")
    answer = sensor.events[0]
    assert isinstance(answer, CanaryAnswered)
    assert answer.seconds > 0.0
    assert Stranger.asked == []
    sensor.stop()


def test_without_a_page_of_our_own_we_are_blind_and_say_so(
    start: Start, stranger: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    life = start([sys.executable, "-c", "import time; time.sleep(600)"])
    sensor = sensor_of(life, tmp_path, stranger)
    look(sensor, 0.0, 1.0, PAGE_PATIENCE_S - 0.5)
    voice = sensor._context.voice
    assert voice.lines == []
    look(sensor, PAGE_PATIENCE_S, PAGE_PATIENCE_S + 1)
    assert sum("no metrics page of this engine" in line for line in voice.lines) == 1
    assert sensor.page == ""
    sensor.ask(5.0)
    assert list(sensor.events) == [CanaryAnswered(0.0)]
    assert Stranger.asked == []
    assert sensor._observer.metrics is None
    sensor.stop()


def test_what_the_user_says_is_believed(start: Start, stranger: int, tmp_path: Path) -> None:
    life = start([sys.executable, "-c", "import time; time.sleep(600)"])
    sensor = sensor_of(life, tmp_path, 8000, f"http://127.0.0.1:{stranger}")
    look(sensor, 0.0)
    assert sensor.page == f"http://127.0.0.1:{stranger}"
    sensor.stop()


@pytest.mark.parametrize("ours", [True, False])
def test_a_bundle_holds_no_page_of_another_engine(start: Start, stranger: int, tmp_path: Path, ours: bool) -> None:
    port = free_port() if ours else stranger
    life = engine_at(start, port, tmp_path) if ours else start([sys.executable, "-c", "import time; time.sleep(600)"])
    url = f"http://127.0.0.1:{port}"
    capture = capture_in_background(Helpers(), life, tmp_path / "c", "test", engine_url=url, clock=lambda: 0.0)
    assert capture.done.wait(30)
    assert (tmp_path / "c" / "metrics.txt").exists() is ours
    assert any("listens on port" in line for line in capture.left_out) is not ours
    assert Stranger.asked == []
    life.details["page"] = f"http://127.0.0.1:{stranger}"
    capture = capture_in_background(Helpers(), life, tmp_path / "d", "test", engine_url=url, clock=lambda: 0.0)
    assert capture.done.wait(30)
    assert "running 7" in (tmp_path / "d" / "metrics.txt").read_text(), "where the sensor found it"


def test_the_config_file_is_read_as_vllm_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text('model: m\nport: 8001\nhost: "0.0.0.0"\nssl_keyfile: k.pem\nmax-num-seqs: 7\nlist: [1, 2]\n')
    serve = ("vllm", "serve", "--config", str(path))
    assert engine_url(serve) == "https://127.0.0.1:8001"
    assert engine_url((*serve, "--port", "9000")) == "https://127.0.0.1:9000", "the command line wins"
    assert setting_of(serve, "--max-num-seqs") == "7"
    assert setting_of(serve, "--list") is None
    for text in ("- 1\n", "port: [\n", "\0", "port: eight\n"):
        path.write_text(text)
        assert engine_url(serve) in ("http://127.0.0.1:8000", None)
    path.write_text("uds: /tmp/x.sock\n")
    assert engine_url(serve) is None
    path.unlink()
    assert engine_url(serve) == "http://127.0.0.1:8000"


def test_a_unix_socket_is_no_port_and_vllm_all_the_same(tmp_path: Path) -> None:
    command = ("vllm", "serve", "m", "--uds", "/tmp/x.sock")
    assert engine_url(command) is None
    environment = engine_environment(Settings(command, tmp_path), "1-x", {}, None)
    assert "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS" in environment
    other = engine_environment(Settings(("sleep", "1"), tmp_path), "1-x", {}, None)
    assert "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS" not in other


def test_underscores_are_dashes_as_for_vllm() -> None:
    assert option_of(["vllm", "serve", "--ssl_keyfile", "k"], "--ssl-keyfile") == "k"
    assert option_of(["vllm", "serve", "--ssl_keyfile=k_e"], "--ssl-keyfile") == "k_e"
    assert option_of(["vllm", "serve", "ssl_keyfile", "k"], "--ssl-keyfile") is None
    assert option_of(["--port", "1", "--port=2"], "--port") == "2"
