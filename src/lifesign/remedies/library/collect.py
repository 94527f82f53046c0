"""What to gather when the log can't decide, and the two general answers: another release, a report."""

from __future__ import annotations

from lifesign.remedies.model import Form, Remedy
from lifesign.text import T

UPGRADE_VLLM = Remedy(
    slug="upgrade-vllm",
    kind="upgrade",
    title=T("upgrade vLLM to a newer release", "升级 vLLM 到新版本"),
    why=T(
        "Such errors are often cured by a later release; search its notes and the issues for the text or the function first.",
        "这类错误往往在后来的版本里修好了；先用报错或函数名查发行说明和 issue。",
    ),
    command="pip install -U vllm",
)

STABLE_VLLM = Remedy(
    slug="stable-vllm",
    kind="upgrade",
    title=T("go back to the version that worked", "回退到正常的版本"),
    why=T(
        "If the error came with an upgrade, the release before it is the quickest cure.",
        "如果是升级后出现的，退回上一个版本最快。",
    ),
    command="pip install vllm==VERSION",
)

REPORT_BUG = Remedy(
    slug="report-bug",
    kind="command",
    title=T("report it to vLLM", "向 vLLM 报告"),
    why=T(
        "This looks like a bug in vLLM: search the issues for the innermost error first, then report it with the whole log and collect_env.",
        "看起来是 vLLM 的 bug：先用最内层错误搜索 issue，没有就带上完整日志和 collect_env 报告。",
    ),
    command="vllm collect-env   # https://github.com/vllm-project/vllm/issues",
)

COLLECT_FULL_LOG = Remedy(
    slug="collect-full-log",
    kind="collect",
    title=T("the whole log, from the first line", "从第一行开始的完整日志"),
    why=T(
        "The cause stands above, in the first line with ERROR and EngineCore or Worker.",
        "原因在更上面：第一条带 ERROR 且来自 EngineCore 或 Worker 的行。",
    ),
    command='vllm serve ... 2>&1 | tee vllm_full.log; grep -nE "ERROR|Traceback|Error:" vllm_full.log | head -40',
)

COLLECT_EXIT_CODE = Remedy(
    slug="collect-exit-code",
    kind="collect",
    title=T("the exit code of the process that died", "死掉的那个进程的退出码"),
    why=T(
        "-9/137 means killed, -11/139 a segfault, -6/134 an abort, 1 a Python error; from 0.26 vLLM prints it for workers.",
        "-9/137 是被杀，-11/139 段错误，-6/134 abort，1 是 Python 错误；0.26 起 vLLM 会打印 worker 的退出码。",
    ),
    command="docker inspect -f '{{.State.ExitCode}} oom={{.State.OOMKilled}}' NAME; kubectl describe pod POD | grep -A6 'Last State'",
)

COLLECT_KERNEL_LOG = Remedy(
    slug="collect-kernel-log",
    kind="collect",
    title=T("the kernel log of that minute", "那一分钟的内核日志"),
    why=T(
        "Kills for lack of memory (oom), segfaults and GPU faults (Xid) stand only there.",
        "内存不足被杀（oom）、段错误和 GPU 故障（Xid）只记在这里。",
    ),
    command='dmesg -T | grep -iE "oom|xid|segfault|killed process"; journalctl -k --since "-1h"',
)

COLLECT_DEBUG = Remedy(
    slug="collect-debug",
    kind="env",
    title=T("more detail if it comes back", "再次发生时记录更多细节"),
    why=T("DEBUG shows start-up steps and waits that INFO leaves out.", "DEBUG 会打印 INFO 省略的启动步骤和等待。"),
    forms=(Form("VLLM_LOGGING_LEVEL", "DEBUG"),),
    cost=T("a much longer log", "日志会长很多"),
    source="envs.py of all 45 releases",
)

COLLECT_CORE_DUMP = Remedy(
    slug="collect-core-dump",
    kind="collect",
    title=T("a core dump and the native stack", "core dump 和原生栈"),
    why=T(
        "A crash in native code leaves no Python traceback; gdb shows the library (faulthandler shows the Python side).",
        "原生代码崩溃没有 Python 栈；gdb 能看出是哪个库（faulthandler 显示 Python 一侧）。",
    ),
    command="ulimit -c unlimited; export PYTHONFAULTHANDLER=1; coredumpctl list python3; coredumpctl gdb -1",
)

COLLECT_ALL_RANKS = Remedy(
    slug="collect-all-ranks",
    kind="collect",
    title=T("the logs of all ranks and nodes", "所有 rank 和节点的日志"),
    why=T(
        "The first rank that failed has the cause; the others only follow.",
        "最先出错的 rank 才有原因，其他只是跟着倒下。",
    ),
    command="kubectl logs POD --all-containers --timestamps > node0.log   # each node; Ray: /tmp/ray/session_latest/logs",
)

COLLECT_RAY_LOGS = Remedy(
    slug="collect-ray-logs",
    kind="collect",
    title=T("the log of the Ray worker that died", "死掉的 Ray worker 的日志"),
    why=T(
        "Ray lists possible reasons; the worker's own file has the real one.",
        "Ray 只列出可能原因；真正的原因在 worker 自己的文件里。",
    ),
    command="ls -t /tmp/ray/session_latest/logs/worker-*.err | head; ray logs actor --id ACTOR_ID --err",
)

COLLECT_CHILD_STDERR = Remedy(
    slug="collect-child-stderr",
    kind="collect",
    title=T("the child process's own output", "子进程自己的输出"),
    why=T(
        "In notebooks and some launchers the engine's stderr isn't shown; run it as a script from a shell.",
        "在 notebook 和某些启动器里看不到引擎的 stderr；请在终端里以脚本方式运行。",
    ),
    command="python script.py 2>&1 | tee vllm_full.log",
)

COLLECT_ENV = Remedy(
    slug="collect-env",
    kind="collect",
    title=T("versions of everything", "各组件的版本"),
    why=T("Driver, CUDA, torch, NCCL and vLLM must fit together.", "驱动、CUDA、torch、NCCL 与 vLLM 必须相互匹配。"),
    command="vllm collect-env; nvidia-smi",
)

COLLECT_ASCEND_PLOG = Remedy(
    slug="collect-ascend-plog",
    kind="collect",
    title=T("the NPU's own log (plog)", "NPU 的 plog 日志"),
    why=T(
        "507014 means that a kernel on the AI core ran too long; plog names the operator. ASCEND_LAUNCH_BLOCKING=1 makes the stack exact.",
        "507014 表示 AI Core 上的算子执行超时；plog 里有算子名。ASCEND_LAUNCH_BLOCKING=1 可让栈准确。",
    ),
    command='export ASCEND_LAUNCH_BLOCKING=1; grep -rnE "ERROR" ~/ascend/log/debug/plog | tail -40',
    source="CANN documentation",
)

COMPUTE_SANITIZER = Remedy(
    slug="compute-sanitizer",
    kind="check",
    title=T("let compute-sanitizer name the bad access", "用 compute-sanitizer 找出越界访问"),
    why=T("It stops at the first wrong access and names the kernel.", "它会停在第一次非法访问处并指出内核。"),
    command="compute-sanitizer --tool memcheck --target-processes all vllm serve MODEL ... --enforce-eager --max-model-len 2048",
    cost=T("a hundred times slower", "慢上百倍"),
    source="NVIDIA docs: compute-sanitizer",
)
