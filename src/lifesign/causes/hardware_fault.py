"""Broken or wedged hardware: what the kernel log or the driver itself says about the device.

vLLM's own log only shows the symptom (illegal access, RPC time-out). An Xid number decides how much it means: many are
caused by software and prove nothing about the board.
"""

from __future__ import annotations

import re

from lifesign.causes._reading import cite, explain, is_loud
from lifesign.causes._xid import BOARD_XIDS, ECC_XIDS, NOTED_XIDS, PROOF_XIDS, SOFT_XIDS, xid_of
from lifesign.causes.model import DECISIVE, SYMPTOM, TRACE, Cause, Finding, Signature, Subtype
from lifesign.facts.model import Event, Life
from lifesign.remedies.model import Remedy
from lifesign.text import T

_DRIVER_FRAMES = ("uvm_spin_loop", "uvm_tracker_wait", "uvm_thread_context_wait")
_DRIVER_WORDS = ("nvidia", "nv_queue", "uvm_", "_nv0", "amdgpu", "i915", " xe ")
_OURS = re.compile(r"(?i)vllm|enginecor|python|pt_main|ray::")

GPU_STATE = Remedy(
    "gpu-state",
    "collect",
    T("what the driver knows about the board", "看驱动对这块卡的记录"),
    T(
        "Uncorrected counts, pending row remaps or a missing card settle it.",
        "不可纠正错误计数、待处理的行重映射或卡消失，就可以定论。",
    ),
    command="nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT,PERFORMANCE; nvidia-smi -L; dmesg -T | grep -iE 'xid|nvrm|nvlink|aer' | tail -30",
)
OTHER_GPU = Remedy(
    "leave-this-gpu-out",
    "command",
    T("run on the other devices", "先用其他卡运行"),
    T("If the death moves with the card, it is the card.", "如果故障跟着这块卡走，就是它的问题。"),
    command="CUDA_VISIBLE_DEVICES=<the other indexes> vllm serve ...",
)
RESET = Remedy(
    "reset-or-reboot",
    "command",
    T("drain the node and reset the GPU, or reboot", "排空节点，重置 GPU 或重启机器"),
    T(
        "Nothing may use the GPU while it is reset. Don't restart the engine in place: the fault stays.",
        "重置时不能有进程占用 GPU。不要原地重启引擎：故障还在。",
    ),
    command="sudo nvidia-smi --gpu-reset -i <index>   # or reboot",
)
RMA = Remedy(
    "memory-diagnostics",
    "check",
    T("run the vendor's diagnostics", "跑厂商诊断"),
    T(
        "Uncorrectable ECC errors that come back after a reset mean that the board must be serviced.",
        "重置后仍反复出现不可纠正 ECC 错误，说明这块卡需要返修。",
    ),
    command="dcgmi diag -r 3",
)
REBOOT = Remedy(
    "reboot-driver-hang",
    "command",
    T("reboot (power cycle if it doesn't go down)", "重启机器（关不掉就断电重启）"),
    T(
        "The process hangs inside the NVIDIA kernel driver; no signal ends it and the GPU memory stays taken until a reboot.",
        "进程卡在 NVIDIA 内核驱动里，任何信号都杀不掉，显存要到重启才会释放。",
    ),
    command="sudo cat /proc/<pid>/stack; nvidia-smi --query-compute-apps=pid,used_memory --format=csv; sudo reboot",
)
DRIVER = Remedy(
    "driver-update",
    "upgrade",
    T("another driver release", "换一个驱动版本"),
    T(
        "Hangs in nvidia_uvm are driver defects; a newer branch (or the one before) usually doesn't have them.",
        "卡在 nvidia_uvm 属于驱动缺陷；换更新的分支（或退回上一个）通常就没有了。",
    ),
)
XID_TABLE = Remedy(
    "look-up-xid",
    "check",
    T("look the Xid number up", "查这个 Xid 编号"),
    T(
        "NVIDIA's table says whether a number points at the board or at the program.",
        "NVIDIA 的 Xid 表会说明它指向硬件还是程序。",
    ),
    command="dmesg -T | grep -i xid; echo https://docs.nvidia.com/deploy/xid-errors/",
)

SUBTYPES = {
    "ecc": Subtype(
        T("The GPU reported an uncorrectable memory error", "GPU 报告了不可纠正的显存错误"),
        T(
            "{what}. The data in device memory was lost, so the process had to die; the CUDA errors in vLLM's log follow from it.",
            "{what}。显存数据已损坏，进程只能死；vLLM 日志里的 CUDA 报错都由此而来。",
        ),
        (GPU_STATE, RESET, OTHER_GPU, RMA),
    ),
    "xid": Subtype(
        T("The GPU driver reported a fault of the device", "GPU 驱动报告设备故障"),
        T(
            "{what}. This number points at the board, its link or its firmware.",
            "{what}。这个编号指向显卡本身、链路或固件。",
        ),
        (GPU_STATE, RESET, OTHER_GPU, XID_TABLE),
    ),
    "xid-software": Subtype(
        T("The driver noted a fault that software usually causes", "驱动记下了一个通常由软件引起的故障"),
        T(
            "{what}. This number is mostly raised by a faulty kernel or by clean-up after one: no evidence of broken hardware.",
            "{what}。这个编号大多由出错的核函数或事后清理引起，不能说明硬件坏了。",
        ),
        (XID_TABLE, GPU_STATE),
    ),
    "device-lost": Subtype(
        T("The device stopped answering its driver", "设备不再应答驱动"),
        T(
            "The driver lost contact with the device; what the engine reports afterwards only follows. Firmware, power, heat, the bus or the card itself: the kernel log and the device's own log tell.",
            "驱动与设备失去联系，之后引擎报的错都是后果。固件、供电、过热、总线或卡本身都有可能：看内核日志和设备自己的日志。",
        ),
        (RESET, GPU_STATE, DRIVER),
    ),
    "driver-hang": Subtype(
        T("A process hangs inside the GPU driver", "进程卡死在 GPU 驱动里"),
        T(
            "The kernel stack stands in the driver ({what}). Such a process can't be ended, not even by SIGKILL.",
            "内核栈停在驱动里（{what}）。这种进程连 SIGKILL 也杀不掉。",
        ),
        (REBOOT, DRIVER, GPU_STATE),
    ),
}


_UNKNOWN_XID = T(
    "{what}. It is neither one of the numbers that mean a broken card nor one that programs usually cause; look it up.",
    "{what}。它既不属于说明显卡损坏的编号，也不属于通常由程序引起的编号；请查表确认。",
)
_NOTED_XID = T(
    "{what}. The card only put it on record: a row or page was set aside, or many errors were corrected. That alone ends no process.",
    "{what}。这只是显卡的记录：隔离了某一行或某一页显存，或纠正了较多错误；单凭它不会结束任何进程。",
)
_LOST_DEVICE = (
    "GPU lost from the bus",
    "NV_ERR_GPU_IS_LOST",
    "GPU is lost.",
    "GPU has fallen off the bus",
    "Unable to determine the device handle for GPU",
)


def _in_driver(event: Event, life: Life) -> bool:
    """Whether a blocked process of ours (or a thread of the driver) stands in the GPU driver, by the kernel's call trace.

    A process that waits for a network disk is reported with the same words, while a model is being loaded above all.
    """
    near = [event, *life.events[event.index + 1 : event.index + 40]]
    text = "\n".join(other.text[:500].lower() for other in near if other.kind in ("kernel", "plain"))
    if not any(word in text for word in _DRIVER_WORDS):
        return False
    return _OURS.search(event.text[:500]) is not None or any(word in event.text.lower() for word in _DRIVER_WORDS)


def _fill(finding: Finding, life: Life) -> Finding | None:
    """Reads the Xid number and weighs it: memory, board, or mostly software (context only)."""
    if finding.subtype == "driver-hang" and life.mentions(*_DRIVER_FRAMES) is not None:
        finding.certainty = "established"
    if finding.subtype == "device-lost":
        return cite(finding, "lost heartbeat", *_LOST_DEVICE)
    text = finding.event.text[:4000]
    finding.values["what"] = text.strip().splitlines()[0][:160] if text.strip() else "?"
    number = xid_of(text)
    if finding.subtype != "xid" or number is None:
        return finding
    finding.values["what"] = f"Xid {number}"
    if number in PROOF_XIDS:
        # The kernel log is usually pasted below the traceback that the fault caused.
        finding.strength = DECISIVE + 1
    if number in ECC_XIDS:
        finding.subtype = "ecc"
    elif number not in BOARD_XIDS:
        finding.subtype = "xid-software"
        finding.role = "context"
        finding.strength = TRACE
        finding.certainty = "possible"
        if number in NOTED_XIDS:
            explain(finding, _NOTED_XID.fill(**finding.values))
        elif number not in SOFT_XIDS:
            explain(finding, _UNKNOWN_XID.fill(**finding.values))
    return finding


CAUSE = Cause(
    slug="hardware-fault",
    code="C8",
    title=T("Hardware or driver fault", "硬件或驱动故障"),
    summary=T(
        "The kernel log or the driver says that the device itself failed or is wedged.",
        "内核日志或驱动表明设备本身坏了或卡死。",
    ),
    subtypes=SUBTYPES,
    signatures=(
        Signature(
            "ecc",
            any=(
                "uncorrectable ECC error",
                "Uncorrectable ECC error",
                "cudaErrorECCUncorrectable",
                "CUDA_ERROR_ECC_UNCORRECTABLE",
                "double-bit ECC",
                "Double Bit ECC",
                "uncorrectable hardware error",
            ),
        ),
        Signature("xid", any=("Xid (",), kinds=("kernel", "plain", "log"), strength=DECISIVE),
        Signature(
            "xid",
            any=(
                "GPU has fallen off the bus",
                "GPU is lost",
                "uncorrectable NVLink error",
                "GPU recovery action changed",
                "Unable to determine the device handle for GPU",
            ),
        ),
        # The card has left the bus: that explains any CUDA error, also one that was printed a moment before.
        Signature(
            "device-lost",
            any=_LOST_DEVICE,
            kinds=("kernel", "plain", "log", "exception", "wrapper"),
            when=is_loud,
            strength=DECISIVE + 1,
        ),
        Signature("device-lost", any=("lost heartbeat",), kinds=("exception", "wrapper", "log", "plain"), when=is_loud),
        Signature("driver-hang", any=_DRIVER_FRAMES, kinds=("kernel", "plain", "native", "log")),
        Signature(
            "driver-hang",
            any=("soft lockup", "blocked for more than"),
            kinds=("kernel", "plain"),
            when=_in_driver,
            strength=SYMPTOM,
            certainty="supported",
        ),
    ),
    refine=_fill,
    order=21,
)
