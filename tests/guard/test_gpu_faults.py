"""Which of the driver's errors ended the engine: the device and the moment decide, not the number alone."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lifesign.guard import closing, procs
from lifesign.guard.blackbox import Capture
from lifesign.guard.board import Board
from lifesign.guard.bundle import Bundle
from lifesign.guard.closing import close_incident, facts_of
from lifesign.guard.context import Context
from lifesign.guard.evidence import devices, kernel
from lifesign.guard.evidence.gpu_faults import EngineGpus, is_evidence, weigh
from lifesign.guard.evidence.kernel import KernelReport, Xid, report_of
from lifesign.guard.helpers import Helpers
from lifesign.guard.inbox import Inbox
from lifesign.guard.life import Life
from lifesign.guard.logstore import SegmentWriter
from lifesign.guard.notify import Notifier
from lifesign.guard.outcome import Outcome
from lifesign.guard.restart import Decision, Died, RestartPolicy
from lifesign.guard.settings import Settings
from lifesign.guard.statedir import StateDir
from lifesign.guard.voice import Voice
from lifesign.text import T

from .fake_engine import OOM

OWN, FOREIGN, THIRD = "0000:3b:00", "0000:86:00", "0000:af:00"
SERVED = EngineGpus(frozenset({OWN}), frozenset({OWN, FOREIGN}), complete=True)
STARTED = EngineGpus(frozenset({OWN}), frozenset({OWN, FOREIGN}))
DIED_S = 10_000.0


@pytest.mark.parametrize(
    ("xid", "gpus", "pids", "kind"),
    [
        (Xid(79, OWN, 0, DIED_S - 2), SERVED, set(), "certain"),
        (Xid(79, OWN, 0, DIED_S - 290), SERVED, set(), "certain"),
        (Xid(79, OWN, 0, DIED_S - 3600), SERVED, set(), "unsure"),
        (Xid(79, OWN, 0, DIED_S + 20), SERVED, set(), "unsure"),
        (Xid(79, FOREIGN, 0, DIED_S - 2), SERVED, set(), "context"),
        (Xid(79, FOREIGN, 0, DIED_S - 2), STARTED, set(), "unsure"),
        (Xid(79, THIRD, 0, DIED_S - 2), STARTED, set(), "context"),
        (Xid(79, OWN, 0, DIED_S - 2), EngineGpus(), set(), "unsure"),
        (Xid(79, OWN, 0, DIED_S - 3600), EngineGpus(), set(), "context"),
        (Xid(79, OWN, 12, DIED_S - 2), EngineGpus(), {12}, "certain"),
        (Xid(79, OWN, 13, DIED_S - 2), EngineGpus(), {12}, "unsure"),
        (Xid(79, OWN, 0, DIED_S - 2), EngineGpus(visible=frozenset({OWN})), set(), "certain"),
        (Xid(79, FOREIGN, 0, DIED_S - 2), EngineGpus(visible=frozenset({OWN})), set(), "context"),
        (Xid(63, OWN, 0, DIED_S - 2), SERVED, set(), "context"),
        (Xid(31, OWN, 12, DIED_S - 2), SERVED, {12}, "context"),
    ],
)
def test_device_and_moment_decide(xid: Xid, gpus: EngineGpus, pids: set[int], kind: str) -> None:
    faults = weigh([xid], gpus, pids, DIED_S)
    got = "certain" if faults.certain else "unsure" if faults.unsure else "context"
    assert got == kind
    assert [one for one, _ in faults.weights] == [xid], "nothing is left unsaid"


def test_a_process_of_ours_in_one_message_tells_whose_device_it_is() -> None:
    faults = weigh([Xid(13, OWN, 12, 1.0), Xid(79, OWN, 0, DIED_S)], EngineGpus(), {12}, DIED_S)
    assert faults.certain == (79,)


def test_only_words_about_our_own_broken_device_are_diagnosed() -> None:
    faults = weigh([Xid(79, OWN, 0, DIED_S)], SERVED, set(), DIED_S)
    none = weigh([Xid(79, FOREIGN, 0, DIED_S)], SERVED, set(), DIED_S)
    for form in ("NVRM: Xid (PCI:{}): 79, pid=1, x", "NVRM: GPU {}.0: GPU has fallen off the bus."):
        assert is_evidence(f"[1.0] {form.format(OWN)}", faults)
        assert not is_evidence(f"[1.0] {form.format(FOREIGN)}", faults)
        assert not is_evidence(f"[1.0] {form.format(OWN)}", none)
    assert is_evidence(f"[1.0] NVRM: Xid (PCI:{OWN}): 31, pid=1, MMU fault", none)
    assert is_evidence("[1.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module", none)
    assert is_evidence("[1.0] Out of memory: Killed process 12 (VLLM::Worker_TP)", none)
    assert not is_evidence(f"[1.0] NVRM: Xid (PCI:{OWN}): 63, Row Remapper: New row marked for remapping", none)


def test_the_engines_devices_come_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\ncase $1 in\n"
        "*query-gpu*) printf '00000000:3B:00.0\\n00000000:86:00.0\\n';;\n"
        "*) printf '41, 00000000:3B:00.0\\n77, 00000000:86:00.0\\n[N/A], 00000000:86:00.0\\n';;\nesac\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = devices.engine_gpus(Helpers(), {41, 42})
    assert (found.own, found.visible) == (frozenset({OWN}), frozenset({OWN, FOREIGN}))
    assert EngineGpus.load(json.loads(json.dumps(SERVED.as_json()))) == SERVED
    assert EngineGpus.load(None) == EngineGpus()
    tool.write_text(
        "#!/bin/sh\necho 'Unable to determine the device handle for GPU0: 0000:3B:00.0: GPU is lost'\nexit 15\n"
    )
    assert devices.engine_gpus(Helpers(), {41}) == EngineGpus()
    monkeypatch.setenv("PATH", "/nonexistent")
    assert devices.engine_gpus(Helpers(), {41}) == EngineGpus()


def outcome_of(
    report: KernelReport, *, gpus: EngineGpus | None = None, memory: dict[str, Any] | None = None
) -> Outcome:
    life = Life("1-abc", 1, procs.ProcId(10, 1), lambda: DIED_S)
    for pid, role, name in ((10, "api", "APIServer"), (11, "core", "EngineCore"), (12, "worker", "Worker_TP0")):
        life.join(procs.ProcId(pid, 1), 1, role, name)
    life.ended(procs.ProcId(12, 1), 9)
    life.ended(procs.ProcId(11, 1), 1 << 8)
    life.ended(procs.ProcId(10, 1), 0)
    if gpus is not None:
        life.details["gpus"] = gpus.as_json()
    return Outcome("died", life, 0.0, 1.0, 5.0, 60.0, 0, "exited", None, [], {}, memory or {}, report, {}, set())


def test_a_kill_is_from_outside_only_if_the_kernels_numbers_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    kills = KernelReport(oom_kills=((12, "VLLM::Worker_TP"),))
    monkeypatch.setattr(kernel, "numbers_processes_as_we_do", lambda: True)
    assert facts_of(outcome_of(kills)).kernel_oom_pids == (12,)
    assert facts_of(outcome_of(kills)).oom_known
    assert not facts_of(outcome_of(KernelReport(note="some were missed"))).oom_known
    assert facts_of(outcome_of(KernelReport(dropped=7))).oom_known, "lines that were let go had been read"
    monkeypatch.setattr(kernel, "numbers_processes_as_we_do", lambda: False)
    inside = facts_of(outcome_of(kills))
    assert inside.kernel_oom_pids == ()
    assert not inside.oom_known
    assert facts_of(outcome_of(KernelReport())).oom_known
    assert facts_of(outcome_of(kills, memory={"events.oom_kill": 0})).oom_known


@pytest.fixture
def context(tmp_path: Path) -> Context:
    settings = Settings(("vllm", "serve", "m"), tmp_path / "state")
    state = StateDir(settings.state_dir)
    state.open()
    board = Board()
    return Context(settings, state, Helpers(), Inbox(), Voice("en"), board, Notifier((), {}, lambda text: None))


def closed(context: Context, report: KernelReport, log: str, gpus: EngineGpus) -> tuple[Any, dict[str, Any], Path]:
    outcome = outcome_of(report, gpus=gpus)
    writer = SegmentWriter(context.state.log_folder(outcome.life.id))
    writer.write(log.encode())
    writer.close()
    policy = RestartPolicy(lambda: 0.5)

    def decide(death: Died) -> Decision:
        decision = policy.handle(death, 1e9)
        assert decision is not None
        return decision

    result = close_incident(context, outcome, command=["vllm", "serve", "m"], environment={}, decide=decide)
    folder = context.state.incidents / result.id
    return result, json.loads((folder / "incident.json").read_text()), folder


@pytest.mark.parametrize(
    ("line", "cause", "action", "diagnosed"),
    [
        (f"NVRM: Xid (PCI:{OWN}): 63, pid=7, Row Remapper: New row marked", "device-oom/serving", "restart", False),
        (f"NVRM: Xid (PCI:{FOREIGN}): 79, GPU has fallen off the bus.", "device-oom/serving", "restart", False),
        (f"NVRM: Xid (PCI:{OWN}): 79, GPU has fallen off the bus.", "hardware-fault/xid", "hold", True),
        (f"NVRM: Xid (PCI:{OWN}): 95, Uncontained ECC error", "hardware-fault/ecc", "hold", True),
    ],
)
def test_the_whole_way_from_the_kernel_to_the_decision(
    context: Context, line: str, cause: str, action: str, diagnosed: bool
) -> None:
    report = report_of([f"[  99.000000] {line}"], DIED_S - 1)
    log = "INFO:     Application startup complete.\n" + OOM.format(pid=12, core=11)
    result, incident, folder = closed(context, report, log, SERVED)
    assert f"{result.ruling.cause}/{result.ruling.subtype}" == cause
    assert result.decision.action == action
    name = "kernel.log" if diagnosed else "kernel-context.log"
    assert line in (folder / name).read_text()
    assert (folder / "kernel-context.log").exists() is not diagnosed
    (seen,) = incident["kernel"]["xids_seen"]
    assert seen["weight"]
    assert bool(incident["kernel"]["xids"]) is diagnosed


SILENT = (
    "(EngineCore pid=11) INFO 11-30 10:00:00 [core.py:112] Initializing a V1 LLM engine (v0.32.0) with config: model='fake'\n"
    "INFO:     Application startup complete.\n"
    "(EngineCore pid=11) ERROR 11-30 10:00:01 [multiproc_executor.py:301] Worker proc VllmWorker-0 died unexpectedly "
    "(exit code: None), shutting down executor.\n"
)


@pytest.mark.parametrize(("pid", "cause"), [(12, "host-oom"), (777, "silent-death")])
def test_a_strangers_end_is_not_ours(context: Context, pid: int, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "numbers_processes_as_we_do", lambda: True)
    lines = [
        "[  98.000000] VLLM::Worker_TP invoked oom-killer: gfp_mask=0xcc0, order=0, oom_score_adj=0",
        f"[  98.100000] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=VLLM::Worker_TP,pid={pid},uid=0",
        f"[  99.000000] Out of memory: Killed process {pid} (VLLM::Worker_TP) total-vm:90000000kB, anon-rss:60000000kB",
    ]
    result, _, folder = closed(context, report_of(lines, DIED_S - 1), SILENT, EngineGpus())
    assert result.ruling.cause == cause
    name = "kernel.log" if cause == "host-oom" else "kernel-context.log"
    assert (folder / name).read_text().splitlines() == lines


def test_a_crash_is_a_strangers_by_its_number() -> None:
    crash = "[1.0] python3[{}]: segfault at 0 ip 0 sp 0 error 4 in libtorch.so"
    for pid, strange in ((12, False), (777, True)):
        assert kernel.is_strangers_end(crash.format(pid), {12}, any_of_ours=False) is strange
    assert not kernel.is_strangers_end("[1.0] usb 1-1: new device", set(), any_of_ours=False)
    head = "[1.0] python3 invoked oom-killer: gfp_mask=0xcc0"
    assert kernel.is_strangers_end(head, {12}, any_of_ours=False)
    assert not kernel.is_strangers_end(head, {12}, any_of_ours=True)


@pytest.mark.parametrize("room", [True, False])
def test_the_log_that_memory_kept_goes_only_once_the_bundle_has_it(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    tail = tmp_path / "lifesign-1-abc.tail"
    tail.write_text("the last words\n")
    outcome = outcome_of(KernelReport())
    outcome.keeper["tail_path"] = str(tail)
    if not room:
        monkeypatch.setattr(Bundle, "_write_log", lambda *_: False)
    decision = Decision("hold", 0.0, T("-", "-"), "-")
    made = close_incident(context, outcome, command=["x"], environment={}, decide=lambda death: decision)
    folder = context.state.incidents / made.id
    assert tail.exists() is not room
    assert (folder / "engine.log").exists() is room
    if room:
        assert (folder / "engine.log").read_text().endswith("the last words\n")
    else:
        left_out = json.loads((folder / "incident.json").read_text())["left_out"]
        assert any(str(tail) in line for line in left_out)
        assert any(line.startswith("engine.log: no room") for line in left_out)


def test_a_report_that_does_not_fit_is_named_and_the_verdict_stays(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child that diagnoses can't write report.md: the folder has something of that name."""
    real = Bundle.make_room

    def block(bundle: Bundle, size_bytes: int) -> None:
        real(bundle, size_bytes)
        (bundle.folder / ".report.md.part").mkdir()

    monkeypatch.setattr(Bundle, "make_room", block)
    log = "INFO:     Application startup complete.\n" + OOM.format(pid=12, core=11)
    result, incident, folder = closed(context, KernelReport(), log, EngineGpus())
    assert f"{result.ruling.cause}/{result.ruling.subtype}" == "device-oom/serving"
    assert (folder / "report.txt").exists()
    assert not (folder / "report.md").exists()
    assert any(line.startswith("report.md:") for line in incident["left_out"])


def test_many_missing_files_are_counted(context: Context) -> None:
    outcome = outcome_of(KernelReport())
    capture = Capture(context.state.root / "captures" / "1-abc" / "0001", "test", 0.0)
    capture.left_out = [f"stacks/{at}.txt: no" for at in range(45)]
    capture.done.set()
    outcome.captures.append(capture)
    decision = Decision("hold", 0.0, T("-", "-"), "-")
    made = close_incident(context, outcome, command=["x"], environment={}, decide=lambda death: decision)
    assert "captures/0001: 5 more files" in made.left_out
    assert sum(line.startswith("captures/0001/") for line in made.left_out) == 40


def test_the_end_of_a_life_begins_with_the_first_of_its_last_ends() -> None:
    ends = {"old": 100.0, "worker": DIED_S - 15, "core": DIED_S - 5, "top": DIED_S}
    life = SimpleNamespace(members={name: SimpleNamespace(ended_s=end) for name, end in ends.items()})
    assert closing._died_s(SimpleNamespace(life=life)) == DIED_S - 15  # type: ignore[arg-type]
    none = SimpleNamespace(members={"x": SimpleNamespace(ended_s=None)})
    assert closing._died_s(SimpleNamespace(life=none)) is None  # type: ignore[arg-type]
