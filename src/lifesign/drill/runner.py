"""Runs one drill: start the engine, load it, break it, watch it end, ask for the diagnosis, compare, clean up.

Everything is bounded: the start by the engine's ready time-out, the rest by the fault's own bound. Whatever happens (also
Ctrl-C, SIGTERM, an error of ours), the engine's processes, shared memory, cgroup and scratch folder are gone afterwards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from lifesign.drill.cgroup import MemoryCgroup
from lifesign.drill.client import Client
from lifesign.drill.diagnosis import agrees, diagnose, exit_line, strictly_agrees, subtype_agrees
from lifesign.drill.engines import Engine, launch_limits
from lifesign.drill.inject import encode
from lifesign.drill.model import Fault, Stall
from lifesign.drill.needs import missing
from lifesign.drill.outcome import Outcome, describe_client
from lifesign.drill.session import Session
from lifesign.drill.vocabulary.slow import SPARED
from lifesign.errors import LifesignError
from lifesign.guard.procs import signal_exactly
from lifesign.text import T

WARM_UP_S = 1.0  # requests run for so long before the fault
NOT_PLACED = "LIFESIGN_FAULT could not be placed"


class DrillError(LifesignError):
    """The drill itself could not be carried out (the engine never served, the fault never acted)."""

    def __init__(self, why: T) -> None:
        self.why = why
        super().__init__(why.en)


def with_patience(fault: Fault) -> Fault:
    """The same fault with LIFESIGN_PATIENCE=1. An honest slow step must then be survived; what is dead must still die."""
    hook = fault.hook
    honest = hook is not None and any(isinstance(a, Stall) and a.kind in ("busy", "native") for a in hook.actions)
    if honest and fault.fate == "dies":
        return dataclasses.replace(fault, patience=True, fate="lives", expect=SPARED, bound_s=fault.bound_s + 60)
    return dataclasses.replace(fault, patience=True, bound_s=fault.bound_s + 60)


def run(fault: Fault, engine: Engine, keep: Path) -> Outcome:
    """Run one drill. The log (and the kernel's lines) stay in `keep`. Never raises for a failing drill."""
    outcome = Outcome(fault, engine.name, engine.release)
    began_s = time.monotonic()
    reason = _why_not(fault, engine)
    if reason is not None:
        outcome.result, outcome.why = "SKIPPED", reason
        return outcome
    with _interruptible(), tempfile.TemporaryDirectory(prefix="lifesign-drill-", ignore_cleanup_errors=True) as folder:
        drill = _Drill(fault, engine, Path(folder), outcome)
        try:
            drill.carry_out()
        except DrillError as error:
            outcome.why = error.why
        finally:
            drill.close()
            _keep_logs(drill, keep)
    if outcome.why is None:
        _judge(outcome)
    outcome.wall_s = time.monotonic() - began_s
    return outcome


def _why_not(fault: Fault, engine: Engine) -> T | None:
    if engine.name not in fault.engines:
        return T("not possible with the {name} engine", "{name} 引擎做不到").fill(name=engine.name)
    if engine.command and fault.how == "start":
        return T("sets its own start; not possible with your own command", "要改启动方式，无法用于自定义命令")
    return missing(fault)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt, so that clean-up runs for both."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Drill:
    """The state of one run."""

    def __init__(self, fault: Fault, engine: Engine, work: Path, outcome: Outcome) -> None:
        self.fault, self.engine, self.work, self.outcome = fault, engine, work, outcome
        self.armed = work / "armed"
        self.fired = work / "fired"
        self.log = work / "engine.log"
        self.kernel_log = work / "kernel.log"
        self.port = _free_port()
        self.session: Session | None = None
        self.client: Client | None = None
        self.cgroup: MemoryCgroup | None = None
        self.listener: socket.socket | None = None
        self.fault_s = 0.0
        self.log_bytes: int | None = None  # how much of the log belongs to the drill

    def say(self, en: str, zh: str) -> None:
        """Note an event."""
        self.outcome.events.append((time.monotonic(), T(en, zh)))

    def carry_out(self) -> None:
        """All of it, up to the end of the engine or of the bound."""
        kernel_before = _kernel_lines() if self.fault.kernel_log else []
        self.start()
        try:
            if self.fault.when == "start-up":
                self.break_start_up()
            else:
                self.wait_until_serving()
                self.break_serving()
        finally:
            start_s = self.fault_s or (self.session.started_s if self.session else time.monotonic())
            self.outcome.events = [(when - start_s, text) for when, text in self.outcome.events]
        if self.fault.kernel_log:
            new = _kernel_lines()[len(kernel_before) :]
            if new:
                self.kernel_log.write_text("\n".join(new) + "\n", encoding="utf-8")

    def start(self) -> None:
        """Start the engine with the fault's settings and limits."""
        fault = self.fault
        if fault.start.port_taken:
            self.listener = socket.create_server(("127.0.0.1", self.port))
        if fault.start.cgroup_mib:
            self.cgroup = MemoryCgroup(fault.start.cgroup_mib)
        argv = self.engine.argv(fault, self.work, self.port)
        environment = self.engine.environment(fault, self.work)
        if fault.patience:
            environment["LIFESIGN_PATIENCE"] = "1"
        if fault.hook is not None:
            armed_by = None if fault.when == "start-up" else self.armed
            environment["LIFESIGN_FAULT"] = encode(
                fault.hook, armed_by=armed_by, fired=self.fired, scale=self.engine.scale
            )
        limits = launch_limits(fault, self.cgroup.members if self.cgroup else None)
        if limits is not None:
            argv = self._launcher(limits) + argv
        self.session = Session(argv, environment, self.log, self.work)
        self.say(f"started {self.engine.name} {self.engine.release}", f"启动 {self.engine.name} {self.engine.release}")
        self.client = Client(self.port, 20.0 + fault.bound_s * self.engine.scale)

    @staticmethod
    def _launcher(limits: str) -> list[str]:
        import sys

        return [sys.executable, str(Path(__file__).with_name("launch.py")), limits]

    def wait_until_serving(self) -> None:
        """Until /health answers 200; DrillError when the engine ends or takes too long."""
        assert self.session is not None
        assert self.client is not None
        end_s = self.session.started_s + self.engine.ready_timeout_s
        while time.monotonic() < end_s:
            code = self.session.wait(0.0)
            if code is not None:
                raise DrillError(
                    T("the engine ended with code {code} before it served", "引擎还没开始服务就退出了（{code}）").fill(
                        code=code
                    )
                )
            if self.client.probe() == "200":
                self.outcome.ready_s = round(time.monotonic() - self.session.started_s, 2)
                self.say(f"serving after {self.outcome.ready_s:.1f} s", f"{self.outcome.ready_s:.1f} 秒后开始服务")
                return
            time.sleep(0.05 if self.engine.name == "fake" else 0.5)
        raise DrillError(
            T("the engine did not serve within {limit} s", "引擎在 {limit} 秒内没有开始服务").fill(
                limit=f"{self.engine.ready_timeout_s:.0f}"
            )
        )

    def break_serving(self) -> None:
        """Load the engine, break it, wait for what comes of it."""
        assert self.session is not None
        assert self.client is not None
        self.client.learn_model()
        if self.client.ask(False).end != "ok":
            raise DrillError(T("the engine did not answer a request before the fault", "注入之前引擎就没有应答请求"))
        self.session.processes()
        self.client.start()
        time.sleep(WARM_UP_S)
        self.fault_s = time.monotonic()
        if self.fault.hook is not None:
            self.armed.touch()
        if self.fault.signal is not None:
            self.send_signal()
        if self.fault.ask is not None:
            self.client.ask_for(self.fault.ask)
        if self.fault.hook is not None:
            self.wait_for_hook()
        self.watch()

    def break_start_up(self) -> None:
        """Watch an engine that is not expected to come up."""
        assert self.session is not None
        self.fault_s = self.session.started_s
        if self.fault.signal is not None:
            self.wait_for_log(self.fault.after_log)
            self.fault_s = time.monotonic()
            self.send_signal()
        self.watch()
        if self.fault.hook is not None and not self.fired.exists():
            raise DrillError(self._why_not_fired())

    def wait_for_log(self, text: str) -> None:
        """Until the log holds `text`; DrillError when the engine ends before, or takes longer than a start may."""
        assert self.session is not None
        end_s = time.monotonic() + self.engine.ready_timeout_s
        while time.monotonic() < end_s:
            if text.encode() in self.log.read_bytes():
                return
            code = self.session.wait(0.2)
            if code is not None:
                raise DrillError(
                    T("the engine ended with code {code} before the signal", "发信号之前引擎就退出了（{code}）").fill(
                        code=code
                    )
                )
        raise DrillError(T("the engine never logged {text}", "引擎一直没有输出 {text}").fill(text=text))

    def send_signal(self) -> None:
        """Send the fault's signal to the process that it names."""
        assert self.session is not None
        wanted = self.fault.signal
        assert wanted is not None
        number = signal.Signals[wanted.name]
        self.fault_s = time.monotonic()
        if wanted.group:
            self.say(f"{wanted.name} to the process group", f"对整个进程组发送 {wanted.name}")
            self.session.signal_group(number)
            return
        target = self.session.find(wanted.role, wanted.rank)
        if target is None:
            raise DrillError(
                T("the engine has no process for {role} {rank}", "引擎里没有 {role} {rank} 进程").fill(
                    role=wanted.role, rank=wanted.rank
                )
            )
        who = f"{wanted.role} {wanted.rank}" if wanted.rank else wanted.role
        # Finding the process took its time, and requests that were answered meanwhile say nothing about the fault.
        self.fault_s = time.monotonic()
        self.say(f"{wanted.name} to {who}, pid {target.pid}", f"对 {who} 发送 {wanted.name}，pid {target.pid}")
        signal_exactly(target, number)
        if wanted.resume_after_s is not None:
            time.sleep(wanted.resume_after_s * self.engine.scale)
            self.say("SIGCONT", "SIGCONT")
            signal_exactly(target, signal.SIGCONT)

    def wait_for_hook(self) -> None:
        """Until the fault has acted inside the engine; the time it gives is when the fault began."""
        assert self.session is not None
        end_s = time.monotonic() + 30.0
        while time.monotonic() < end_s:
            with contextlib.suppress(OSError, ValueError, IndexError):
                pid, when = self.fired.read_text(encoding="ascii").split()[:2]
                self.fault_s = float(when)
                self.say(f"fault acts in pid {pid}", f"故障在 pid {pid} 中生效")
                return
            if self.session.wait(0.05) is not None:
                break
        raise DrillError(self._why_not_fired())

    def _why_not_fired(self) -> T:
        text = self.log.read_bytes()[-200_000:].decode("utf-8", "replace")
        line = next((line for line in text.splitlines() if NOT_PLACED in line), "")
        if line:
            return T(line[:300], line[:300])
        point = self.fault.hook.point if self.fault.hook else ""
        return T("the fault never acted: the engine did not pass {point}", "故障没有生效：引擎没有经过 {point}").fill(
            point=point
        )

    def watch(self) -> None:
        """Until the engine ends, recovers, or the bound is over; then end it if need be."""
        assert self.session is not None
        assert self.client is not None
        fault, session, client = self.fault, self.session, self.client
        if fault.when == "start-up" and fault.signal is None:
            end_s = session.started_s + max(fault.bound_s * self.engine.scale, self.engine.ready_timeout_s)
        else:
            end_s = self.fault_s + max(5.0, fault.bound_s * self.engine.scale)
        unhealthy_told = False
        while time.monotonic() < end_s:
            code = session.wait(0.1)
            if code is not None:
                self.outcome.exit_code = code
                self.outcome.death_s = round(time.monotonic() - self.fault_s, 2)
                self.say(f"the engine ended with code {code}", f"引擎退出，退出码 {code}")
                break
            session.processes()
            if fault.when == "start-up" and client.probe() == "200":
                self.outcome.ready_s = round(time.monotonic() - session.started_s, 2)
                self.say("the engine serves", "引擎开始服务")
                break
            if fault.fate == "lives" and client.recovered(self.fault_s + 0.2):
                self.say("requests are answered", "请求恢复应答")
                break
            if not unhealthy_told and any(state != "200" for when, state in client.health if when > self.fault_s):
                unhealthy_told = True
                self.say("/health no longer answers 200", "/health 不再返回 200")
        self.outcome.client = client.counts(self.fault_s)
        self.outcome.health = client.health_changes(self.fault_s)
        self.finish()

    def finish(self) -> None:
        """Stop an engine that still runs, the way the fault's expectation reads the log: before or after a clean stop."""
        assert self.session is not None
        if self.outcome.exit_code is None:
            if self.fault.expect.phase != "shutdown":
                self.log_bytes = self.log.stat().st_size
            self.session.top.send_signal(signal.SIGTERM)
            self.session.wait(3.0 if self.log_bytes is not None else 20.0)
            return
        time.sleep(0.5 if self.engine.name == "fake" else 3.0)  # last words of children; resource trackers
        self.outcome.left = self.session.leftovers()

    def close(self) -> None:
        """Leave nothing behind."""
        if self.session is not None:
            self.session.close()
        if self.client is not None:
            self.client.stop()
        if self.listener is not None:
            self.listener.close()
        if self.cgroup is not None:
            self.cgroup.remove()


def _keep_logs(drill: _Drill, keep: Path) -> None:
    """Move what is worth keeping out of the scratch folder."""
    if not drill.log.exists():
        return
    keep.mkdir(parents=True, exist_ok=True)
    target = keep / f"{drill.fault.name}.log"
    if drill.log_bytes is not None:
        with drill.log.open("rb") as file:
            target.write_bytes(file.read(drill.log_bytes))
    else:
        shutil.copyfile(drill.log, target)
    drill.outcome.log = str(target)
    if drill.kernel_log.exists():
        kernel = keep / f"{drill.fault.name}.kernel.log"
        shutil.copyfile(drill.kernel_log, kernel)
        drill.outcome.kernel_log = str(kernel)
    status = exit_line(drill.outcome.exit_code)
    if status:
        beside = keep / f"{drill.fault.name}.exit.txt"
        beside.write_text(status, encoding="utf-8")
        drill.outcome.exit_log = str(beside)


def _judge(outcome: Outcome) -> None:
    """PASS needs three things: the engine's fate, what the client saw of a fault that harms nobody, and the diagnosis."""
    outcome.got = diagnose(Path(outcome.log), *(Path(path) for path in (outcome.kernel_log, outcome.exit_log) if path))
    if outcome.got.problem:
        outcome.why = _wrong_fate(outcome) or T(outcome.got.problem, outcome.got.problem)
        return
    expect = outcome.fault.expect
    outcome.subtype_right = subtype_agrees(expect, outcome.got)
    outcome.strict = strictly_agrees(expect, outcome.got)
    outcome.why = _wrong_fate(outcome)
    if outcome.why is None and not (agrees(expect, outcome.got) and outcome.subtype_right):
        outcome.why = T("expected {want}, the diagnosis says {got}", "应为 {want}，诊断却是 {got}").fill(
            want=expect.slug, got=outcome.got.slug
        )
    if outcome.why is None:
        outcome.result = "PASS"


def _wrong_fate(outcome: Outcome) -> T | None:
    """What the engine or the client experienced that this fault should not have brought; None when all is as expected."""
    fault, lived = outcome.fault, outcome.exit_code is None
    if fault.fate == "dies" and lived:
        return T("the engine did not end within {limit} s", "引擎在 {limit} 秒内没有退出").fill(
            limit=f"{fault.bound_s:.0f}"
        )
    if fault.fate == "lives" and not lived:
        return T("the engine ended with code {code} and should have lived", "引擎退出了（{code}），本应活着").fill(
            code=outcome.exit_code
        )
    if fault.fate == "lives" and fault.expect.phase == "shutdown":
        allowed = {"http error": 1} if fault.ask else {}
        lost = {end: n for end, n in outcome.client.items() if end != "ok" and n > allowed.get(end, 0)}
        if lost:
            return T(
                f"requests were lost: {describe_client(lost)}", f"有请求没有得到回应：{describe_client(lost, 'zh')}"
            )
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _kernel_lines() -> list[str]:
    """The kernel log, where we may read it."""
    try:
        done = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=10, check=False, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
