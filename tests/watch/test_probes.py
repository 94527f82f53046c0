"""The probes of `watch` one by one: the metrics page, the tree, devices, the observer's bookkeeping."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from watching import Engine

from lifesign.cli.watch_view import headline, sees
from lifesign.errors import UsageError
from lifesign.guard.detector.beacon import BeaconWriter
from lifesign.guard.detector.core import Detector
from lifesign.guard.detector.events import Poll
from lifesign.guard.detector.evidence import GpuSignals
from lifesign.guard.probes.gpu import GpuProbe
from lifesign.guard.probes.metrics import canary, fetch, parse_metrics, parse_url
from lifesign.guard.probes.observer import Observer
from lifesign.guard.probes.tree import find_engine, is_foreign, listener_of, ports_of, uses_gpu

PAGE = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="a} b\\"c"} 4.0
vllm:generation_tokens_total{engine="0"} 100.0
vllm:iteration_tokens_total_count{engine="0"} 10
vllm:gpu_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="0"} 0.5
process_cpu_seconds_total 77
"""


def test_page_is_summed_over_engines_and_newest_name_wins() -> None:
    page = parse_metrics(PAGE, 5.0)
    assert page.is_vllm
    assert page.demand
    assert page.values == {"running": 5.0, "waiting": 4.0, "generated": 100.0, "iterations": 10.0, "kv_usage": 0.5}
    assert page.missing == ["vllm:prompt_tokens_total"]


def test_movement_of_a_page() -> None:
    old = parse_metrics(PAGE, 0.0)
    assert parse_metrics(PAGE, 1.0).moved_since(old) == 0
    assert parse_metrics(PAGE.replace('count{engine="0"} 10', 'count{engine="0"} 17'), 1.0).moved_since(old) == 7
    # A prefill-only step moves no counter, but the cache fills.
    assert parse_metrics(PAGE.replace("0.5", "0.6"), 1.0).moved_since(old) == 1
    assert parse_metrics(PAGE.replace('running{engine="0"', 'running{engine="9"'), 1.0).moved_since(old) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "vllm:",
        "vllm:num_requests_running",
        "vllm:num_requests_running{ x",
        "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf",
        "vllm:num_requests_running{" + "a" * 1_000_000,
        "vllm:num_requests_running{" + "}" * 100_000,
        "<html>vllm:num_requests_running 1</html>",
        "\x1b[2Jvllm:num_requests_running 3",
    ],
)
def test_rubbish_pages_give_nothing(text: str) -> None:
    assert parse_metrics(text, 0.0).values == {}


def test_urls() -> None:
    assert parse_url("http://127.0.0.1:8000").url == "http://127.0.0.1:8000"
    assert parse_url("localhost:8000/metrics").local
    assert parse_url("https://[::1]:1/x/metrics").path == "/x/metrics"
    assert not parse_url("http://example.org").local
    assert parse_url("http://example.org").port == 80
    for bad in ("", "http://", "file:///etc/passwd", "http://h:x"):
        with pytest.raises(UsageError):
            parse_url(bad)


def test_the_tree_is_found_from_any_member(engine: Callable[..., Engine]) -> None:
    one = engine("--no-beacon")
    for pid in (one.server, one.core, one.workers[1]):
        tree = find_engine(pid)
        assert tree.root == one.server
        roles = {member.pid: (member.role, member.name) for member in tree.members}
        assert roles == {
            one.server: ("server", "APIServer"),
            one.core: ("engine", "EngineCore"),
            one.workers[0]: ("worker", "worker 0"),
            one.workers[1]: ("worker", "worker 1"),
        }
    assert ports_of(tree) == [one.port]
    assert listener_of(one.port) == one.server
    assert listener_of(1) is None
    assert not uses_gpu(tree)


def test_observer_counts_steps_once_and_sees_the_running_one(engine: Callable[..., Engine]) -> None:
    one = engine("--no-http")
    tree = find_engine(one.core)
    observer, detector = Observer(tree), Detector()
    for _ in range(100):
        begin = observer.begin()
        if begin.serving:
            break
        time.sleep(0.1)  # the beacon says STARTING until the first step begins
    assert (begin.backend, begin.tier, begin.serving) == ("cpu", "beacon", True)
    detector.handle(begin, 0.0)
    total = 0
    first = None
    for second in range(200):
        look = observer.look(float(second), detector)
        poll = next(event for event in look.events if isinstance(event, Poll))
        assert poll.demand
        total += poll.steps or 0
        first = first if first is not None else look.beacon.steps_done  # type: ignore[union-attr]
        if total >= 3:
            break
        time.sleep(0.2)
    assert look.beacon is not None
    assert total == look.beacon.steps_done - (first or 0)
    assert poll.running is None or tuple(poll.running) == (4, 4)
    observer.close()


def nvml(**more: object) -> SimpleNamespace:
    readings = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda at: at,
        "nvmlDeviceGetComputeRunningProcesses": lambda at: [SimpleNamespace(pid=100 + at)],
        "nvmlDeviceGetPowerUsage": lambda at: 250_000,
        "nvmlDeviceGetUtilizationRates": lambda at: SimpleNamespace(gpu=100, memory=40),
    }
    return SimpleNamespace(**readings | more)


def test_devices_of_the_engine_alone() -> None:
    probe = GpuProbe(nvml())
    assert [one.index for one in probe.sample()] == [0, 1]
    probe.choose({101})
    assert probe.sample() == (GpuSignals(1, 250.0, 40.0),)
    assert probe.chosen
    probe.choose({999})  # unknown: nothing is thrown away
    assert len(probe.sample()) == 1


def test_devices_are_chosen_once_the_engine_works_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[SimpleNamespace] = []
    gpu = GpuProbe(nvml(nvmlDeviceGetComputeRunningProcesses=lambda at: running if at == 1 else []))
    monkeypatch.setattr("lifesign.guard.probes.observer.refresh", lambda tree: None)
    tree = SimpleNamespace(targets=[], beacon=None, members=[SimpleNamespace(pid=101)])
    observer, detector = Observer(tree, gpu=gpu), Detector()  # type: ignore[arg-type]
    assert [one.index for one in observer.look(0.0, detector).gpus] == [0, 1]
    running.append(SimpleNamespace(pid=101))
    assert [one.index for one in observer.look(60.0, detector).gpus] == [1]


@pytest.mark.parametrize(
    ("pids", "visible", "count", "kept"),
    [
        ({101}, "", 1, [1]),  # where they run
        ({999}, "1", 1, [1]),  # another pid namespace: what the variable names
        ({999}, "GPU-aaaa-1,GPU-ffff", 2, [1]),
        ({999}, "", 2, [0, 1]),  # a container that sees just its own
        ({999}, "", 1, []),  # somebody else's may be among them
        ({999}, "7", 1, []),
    ],
)
def test_only_our_own_devices_may_vouch(pids: set[int], visible: str, count: int, kept: list[int]) -> None:
    probe = GpuProbe(nvml(nvmlDeviceGetUUID=lambda at: f"GPU-aaaa-{at}"))
    probe.keep_only(pids, visible, count)
    assert [one.index for one in probe.sample()] == kept
    assert probe.available is bool(kept)
    assert bool(probe.reason) is not bool(kept)


def test_broken_nvml_is_a_reason_not_an_error() -> None:
    def fails(*_: object) -> object:
        raise RuntimeError("driver not loaded")

    assert GpuProbe(nvml(nvmlInit=fails)).reason == "NVML can't be used: driver not loaded"
    assert GpuProbe(nvml(nvmlDeviceGetCount=lambda: 0)).reason == "NVML knows no device"
    half = GpuProbe(nvml(nvmlDeviceGetPowerUsage=fails))
    assert half.available
    assert half.sample() == ()


def test_another_users_engine_is_said(engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine("--no-beacon", "--no-http")
    tree = find_engine(one.core)
    assert not is_foreign(tree)
    observer = Observer(tree)
    session = SimpleNamespace(tree=tree, endpoint=None, observer=observer, detector=Detector())
    own = " ".join(line.en for line in sees(session))  # type: ignore[arg-type]
    assert "LIFESIGN_PATIENCE=1" in own
    assert "none found" in own
    assert not observer.sees_progress
    look = observer.look(0.0, session.detector)
    assert "progress can't be seen" in headline(session, look, "en")  # type: ignore[arg-type]
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    assert is_foreign(tree)
    other = " ".join(line.en for line in sees(session))  # type: ignore[arg-type]
    assert "another user's (run this as that user" in other
    assert "another user's (give it with --metrics URL)" in other
    observer.close()


class Server(http.server.BaseHTTPRequestHandler):
    """Answers a canary as told: with a token, with a refusal, or never."""

    how = "token"

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "tiny"}]}')

    def do_POST(self) -> None:
        if self.how == "never":
            time.sleep(3.0)
        self.send_response(400 if self.how == "refusal" else 200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.parametrize(
    ("how", "possible", "answered"), [("token", True, True), ("refusal", False, False), ("never", True, False)]
)
def test_canary(how: str, possible: bool, answered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "how", how)
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    try:
        can, seconds = canary(parse_url(f"http://127.0.0.1:{web.server_port}"), 0.5 if how == "never" else 20.0)
    finally:
        web.shutdown()
        web.server_close()
    assert can is possible
    assert (seconds is not None) is answered


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("http://" + "a" * 70, "too long"),
        ("http://.:1", "empty"),
        ("http://a..b:1", "empty"),
        ("http://a b:1", "blank"),
        ("http://a%20b:1", "blank"),
        ("127.0.0.1:0", "port 0"),
        ("unix:/run/x.sock", "Unix socket"),
        ("unix:///run/x.sock", "Unix socket"),
        ("", "neither"),
        ("  ", "neither"),
        ("１２３", "neither"),
        ("ftp://x", "neither"),
        ("/etc/passwd", "neither"),
        ("::1", "no URL"),
        ("http://[::1", "no URL"),
        ("http://127.0.0.1:99999", "no URL"),
    ],
)
def test_what_is_no_address_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_url(text)


@pytest.mark.parametrize(
    ("text", "url", "path"),
    [
        (" 127.0.0.1:8000 ", "http://127.0.0.1:8000", "/metrics"),
        ("http://[::1]:8000", "http://[::1]:8000", "/metrics"),
        ("http://[fe80::1%25eth0]:8000", "http://[fe80::1%eth0]:8000", "/metrics"),
        ("http://user:word@host:8000", "http://host:8000", "/metrics"),
        ("http://bücher.example:8000", "http://bücher.example:8000", "/metrics"),
        ("http://host:8000/a b/é/metrics", "http://host:8000", "/a%20b/%C3%A9/metrics"),
        ("http://host:8000/a%20b/metrics?x=1#y", "http://host:8000", "/a%20b/metrics"),
    ],
)
def test_odd_addresses_that_can_be_asked(text: str, url: str, path: str) -> None:
    endpoint = parse_url(text)
    assert (endpoint.url, endpoint.path) == (url, path)
    with contextlib.suppress(OSError):  # nobody is there; what matters is that the request can be made
        fetch(replace(endpoint, host="127.0.0.1", port=1))


def test_a_beacon_that_was_taken_back_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that it showed last would never end, and a living engine would be called stuck."""
    monkeypatch.setattr("lifesign.guard.probes.observer.refresh", lambda tree: None)
    writer = BeaconWriter("cpu", tmp_path)
    tree = SimpleNamespace(targets=[], beacon=writer.path, members=[])
    observer, detector = Observer(tree), Detector()  # type: ignore[arg-type]
    writer.step_started(4, 4)
    first = observer.look(0.0, detector)
    assert first.beacon is not None
    assert first.beacon.stepping
    rename = writer.path.with_suffix(".away")
    writer.path.write_bytes(b"torn")  # there, but not to be read just now: the last reading counts
    assert observer.look(1.0, detector).beacon == first.beacon
    writer.path.rename(rename)
    later = observer.look(2.0, detector)
    assert later.beacon is None
    (poll,) = [event for event in later.events if isinstance(event, Poll)]
    assert (poll.running, poll.demand) == (None, False)
    writer.withdraw()
