"""KV transfer and offloading: LMCache, NIXL, Mooncake, the offloading connectors, connectors of third parties.

The frames name the cause even where the message is empty. Memory and CUDA errors that merely pass through a
connector's frames belong to their own causes.
"""

from __future__ import annotations

from msgspec.structs import replace

from lifesign.causes._engine_places import counts_external_tokens
from lifesign.causes.model import SYMPTOM, Cause, Finding, Signature, Subtype
from lifesign.facts.model import Event, Life
from lifesign.logs.model import Frame
from lifesign.remedies import library as lib
from lifesign.remedies.model import Form, Remedy
from lifesign.text import T

_OTHERS = (
    "out of memory",
    "CUDA error",
    "NCCL error",
    "HIP error",
    "illegal memory access",
    "EngineDeadError",
    "Address already in use",
    "No module named",
    "cannot import name",
    "undefined symbol",
)
_OFFLOAD_FRAMES = (
    "offloading_connector",
    "/offloading/",
    "kv_offload",
    "cpu_offload_connector",
    "simple_cpu_offload",
    "native_offload",
)
_GENERIC_FRAMES = (
    "kv_connector",
    "kv_transfer",
    "kv_cache_connector",
    ":_update_from_kv_xfer_finished",
    ":_update_waiting_for_remote_kv",
    ":_handle_invalid_blocks",
    ":maybe_setup_kv_connector",
    ":get_finished_kv_transfers",
)

UPGRADE_BOTH = Remedy(
    slug="upgrade-connector",
    kind="upgrade",
    title=T("a connector release made for this vLLM", "换成与这个 vLLM 配套的 connector 版本"),
    why=T(
        "Connectors follow vLLM's internal interface closely; upgrade LMCache (or NIXL, Mooncake, the plug-in) and vLLM together.",
        "connector 紧跟 vLLM 的内部接口；请把 LMCache（或 NIXL、Mooncake、插件）与 vLLM 一起升级。",
    ),
    command="pip list 2>/dev/null | grep -iE 'vllm|lmcache|nixl|mooncake'; pip install -U lmcache nixl",
)
SIDE_CHANNEL = Remedy(
    slug="nixl-side-channel",
    kind="env",
    title=T("name the host of NIXL's side channel", "指定 NIXL side channel 的主机"),
    why=T(
        "An engine id that doesn't match means that the decode side asked the wrong prefill instance.",
        "engine ID 对不上，说明 decode 问错了 prefill 实例。",
    ),
    forms=(Form("VLLM_NIXL_SIDE_CHANNEL_HOST", "NODE_IP"),),
    source="vllm#27083",
)
_OWN_ADDRESS = T(
    "Each node must name an address of its own: the one given here belongs to another node, or the port is taken.",
    "每个节点要填自己的地址：这里给的地址属于别的节点，或者端口已被占用。",
)
NO_OFFLOAD = Remedy(
    slug="no-kv-offload",
    kind="command",
    title=T("try without KV offloading", "先关掉 KV 卸载"),
    why=T(
        "Take --kv-offloading-size / the OffloadingConnector off: if the engine then lives, the offloading connector is at fault.",
        "去掉 --kv-offloading-size 或 OffloadingConnector；这样能活，就是卸载 connector 的问题。",
    ),
    command="vllm serve MODEL ...   # yours, without --kv-offloading-size and --kv-transfer-config",
    cost=T("a smaller prefix cache", "前缀缓存变小"),
)
PLUGIN_LIMITS = Remedy(
    slug="plugin-assumptions",
    kind="check",
    title=T("check what the plug-in connector assumes", "核对插件 connector 的前提条件"),
    why=T(
        "The assertion is in the plug-in's own code ({file}): it assumes something about block size, --max-num-batched-tokens or prefix lengths that this run breaks. Report it there.",
        "断言在插件自己的代码里（{file}）：它对 block size、--max-num-batched-tokens 或前缀长度有假设，而这次运行不满足。请反馈给插件作者。",
    ),
    command="grep -n 'kv_transfer_config\\|max_num_batched_tokens\\|block_size' vllm.log | head",
)

PEER_REACHED = Remedy(
    slug="kv-peer-reached",
    kind="check",
    title=T(
        "look at the prefill side: alive, reached, and done with this request?",
        "看 prefill 端：还活着吗、连得上吗、这个请求处理完了吗",
    ),
    why=T(
        "The waiting line's request id stands in the prefill side's log too; remote_host and remote_port are in its kv_transfer_params.",
        "等待行里的请求 id 在 prefill 端日志里也有；kv_transfer_params 里有 remote_host 和 remote_port。",
    ),
    command="grep -n 'kv_transfer_params' vllm.log | tail -3; nc -zv REMOTE_HOST REMOTE_PORT",
)
SUBTYPES = {
    "lmcache": Subtype(
        T("The LMCache connector failed", "LMCache connector 出错"),
        T(
            "The exception was raised in LMCache's code ({frame}), which runs inside the engine and so ends it.",
            "异常出在 LMCache 的代码里（{frame}）；它在引擎进程内运行，一出错引擎就没了。",
        ),
        (lib.DROP_KV_CONNECTOR, UPGRADE_BOTH, lib.MATCH_PREFILL_DECODE, lib.REPORT_BUG),
        ("LMCache#1259", "LMCache#2238", "vllm#44249"),
    ),
    "nixl": Subtype(
        T("A KV transfer over NIXL failed", "经由 NIXL 的 KV 传输失败"),
        T(
            "NIXL (or UCX below it) refused a transfer or the two sides don't fit: {what}.",
            "NIXL（或其下的 UCX）拒绝了传输，或两端不匹配：{what}。",
        ),
        (lib.UCX_TRANSPORT, lib.MATCH_PREFILL_DECODE, SIDE_CHANNEL, UPGRADE_BOTH, lib.DROP_KV_CONNECTOR),
        ("vllm#18322", "vllm#19338", "vllm#23086", "LMCache#605"),
    ),
    "mooncake": Subtype(
        T("The Mooncake connector failed", "Mooncake connector 出错"),
        T(
            "The exception was raised in the Mooncake connector ({frame}).",
            "异常出在 Mooncake connector 里（{frame}）。",
        ),
        (lib.DROP_KV_CONNECTOR, UPGRADE_BOTH, lib.MATCH_PREFILL_DECODE),
    ),
    "transfer-hang": Subtype(
        T("A request waits for KV cache that never arrives", "请求一直在等对端的 KV cache，却始终没有收到"),
        T(
            "The decode side asked the prefill side for blocks and hears nothing: no error, and /health still answers. The transfer was lost, the other side is gone, or its port isn't reached.",
            "decode 端向 prefill 端要 KV 块，却没有回音：没有报错，/health 也照常应答。可能是传输丢了、对端已经不在，或端口不通。",
        ),
        (PEER_REACHED, lib.MATCH_PREFILL_DECODE, UPGRADE_BOTH),
    ),
    "cpu-offload-assert": Subtype(
        T("An assertion in the KV offloading connector failed", "KV 卸载 connector 里的断言失败"),
        T(
            "The bookkeeping of offloaded blocks went wrong ({frame}); the condition is in vLLM's connector, not in your request.",
            "卸载块的记账出了错（{frame}）；问题在 vLLM 的 connector，不在你的请求。",
        ),
        (NO_OFFLOAD, lib.UPGRADE_VLLM, lib.REPORT_BUG),
        ("vllm#43884", "vllm#44409", "vllm#50454", "vllm#28950"),
    ),
    "cpu-offload": Subtype(
        T("KV offloading to the host failed", "KV 卸载到主机失败"),
        T("The exception was raised in the offloading connector ({frame}).", "异常出在卸载 connector 里（{frame}）。"),
        (NO_OFFLOAD, lib.MORE_HOST_MEMORY, lib.UPGRADE_VLLM),
    ),
    "block-size": Subtype(
        T("The two sides of a KV transfer use different block sizes", "KV 传输两端的 block size 不一致"),
        T(
            "Blocks can only be exchanged when both sides cut them alike: {what}.",
            "两端的块切法一致才能交换：{what}。",
        ),
        (lib.MATCH_PREFILL_DECODE, lib.SMALLER_BLOCK_SIZE, UPGRADE_BOTH),
        ("vllm#42895",),
    ),
    "third-party-assert": Subtype(
        T("A plug-in KV connector failed", "第三方 KV connector 插件出错"),
        T(
            "The innermost frame is outside vLLM, in a connector plug-in ({frame}).",
            "最内层的栈帧不在 vLLM 里，而在 connector 插件中（{frame}）。",
        ),
        (lib.DROP_KV_CONNECTOR, PLUGIN_LIMITS, UPGRADE_BOTH),
    ),
    "connector": Subtype(
        T("A KV connector failed", "KV connector 出错"),
        T("The exception passed through the KV connector ({frame}).", "异常经过 KV connector（{frame}）。"),
        (lib.DROP_KV_CONNECTOR, UPGRADE_BOTH, lib.MATCH_PREFILL_DECODE, lib.REPORT_BUG),
    ),
    "config": Subtype(
        T("The KV connector's settings were refused", "KV connector 的配置被拒绝"),
        T("vLLM refused the connector's settings: {what}", "vLLM 拒绝了 connector 的配置：{what}"),
        (
            Remedy(
                slug="fix-kv-transfer-config",
                kind="check",
                title=T("correct --kv-transfer-config", "修正 --kv-transfer-config"),
                why=T(
                    "The message names the field: connector name, role, or a feature that it doesn't support.",
                    "报错里已经点名：connector 名、role，或它不支持的功能。",
                ),
                command="grep -n kv_transfer_config vllm.log | head -3",
            ),
            UPGRADE_BOTH,
        ),
    ),
}


_AWAITED = "is still in WAITING_FOR_REMOTE_KVS state"
_PATIENT_LINES = 5


def _never_arrives(event: Event, life: Life) -> bool:
    """Whether the scheduler says so again and again (DEBUG, once a round) while nothing is computed."""
    return sum(_AWAITED in other.text for other in life.events[event.index :]) >= _PATIENT_LINES


def _innermost(event: Event) -> str:
    """`file.py:func` of the innermost frame, or the type of the error."""
    if event.exc is None or not event.exc.frames:
        return event.text[:60]
    frame = event.exc.frames[-1]
    return f"{frame.file.replace(chr(92), '/').rpartition('/')[2]}:{frame.func}"


def _fill(finding: Finding, life: Life) -> Finding | None:
    """Chooses the connector by the innermost frame that names one, and fills what failed where."""
    event = finding.event
    finding.values["frame"] = _innermost(event)
    first = event.text.strip().split("\n")[0][:160]
    finding.values["what"] = first or finding.values["frame"]
    finding.values["file"] = finding.values["frame"].partition(":")[0]
    if life.after(event, "Recovered from KV load failure", "marking blocks as invalid", within=60) is not None:
        # The request was computed again: an error, but no death.
        finding.role, finding.certainty = "context", "possible"
    crashed = _crashed_there(event, life) if event.kind == "native" else ""
    if crashed:
        finding.subtype = finding.values["frame"] = crashed
        finding.values["file"] = crashed
    if finding.subtype == "connector" and event.exc is not None:
        finding.subtype = _by_frames(event, life)
    if finding.subtype == "nixl":
        finding.remedies = _for_nixl(event)
    return finding


def _for_nixl(event: Event) -> tuple[Remedy, ...]:
    """Transports of UCX are to blame only where UCX or NIXL's backend spoke; an address is a setting of this node."""
    rest = (lib.MATCH_PREFILL_DECODE, UPGRADE_BOTH, lib.DROP_KV_CONNECTOR)
    if event.has("Cannot assign requested address", "Address already in use", "ZMQError"):
        return (replace(SIDE_CHANNEL, why=_OWN_ADDRESS), *rest)
    if (
        event.has("NIXL_ERR", "nixlBackendError", "UCX", "ucx", "BAD_STATUS", "transfer failure")
        or event.kind == "native"
    ):
        return (lib.UCX_TRANSPORT, SIDE_CHANNEL, *rest)
    return (rest[0], rest[1], SIDE_CHANNEL, rest[2])


def _is_plug_in(frame: Frame) -> bool:
    """Whether a connector's frame lies outside vLLM, its libraries and Python's own."""
    file = frame.file.replace("\\", "/").lower()
    inside = ("vllm/distributed/", "vllm/v1/", "vllm/worker/", "vllm/core/", "/torch/", "vllm_ascend/")
    standard = "/lib/python3" in file and "-packages/" not in file
    return not standard and not any(part in file for part in inside)


def _by_frames(event: Event, life: Life) -> str:
    """The subtype that the frames (then the configured connector) name."""
    assert event.exc is not None
    files = [frame.file.replace("\\", "/").lower() for frame in event.exc.frames]
    asserted = event.exc.short_type == "AssertionError"
    code = event.exc.frames[-1].code if event.exc.frames else ""
    sized = any("block_size" in text or "block size" in text for text in (event.text, code))
    offloads = any(part in file for file in files[-2:] for part in _OFFLOAD_FRAMES)
    if sized and not offloads and event.exc.short_type != "KeyError":
        # A KeyError only says that the two sides never met.
        return "block-size"
    for file in reversed(files):
        if "nixl" in file:
            return "nixl"
        if "lmcache" in file:
            return "lmcache"
        if "mooncake" in file:
            return "mooncake"
        if any(part in file for part in _OFFLOAD_FRAMES):
            return "cpu-offload-assert" if asserted else "cpu-offload"
    if files and _is_plug_in(event.exc.frames[-1]):
        return "third-party-assert"
    config = str(life.config.get("kv_transfer_config", "")).lower()
    for name, subtype in (("nixl", "nixl"), ("lmcache", "lmcache"), ("mooncake", "mooncake")):
        if name in config:
            return subtype
    if "offload" in config:
        return "cpu-offload-assert" if asserted else "cpu-offload"
    return "connector"


def _raised_there(event: Event, _life: Life) -> bool:
    """Whether the connector is near the end of the traceback: in the last six frames, not just the call that led there."""
    if event.exc is None:
        return False
    tail = [f"{frame.file}:{frame.func}".replace("\\", "/").lower() for frame in event.exc.frames[-6:]]
    parts = (*_OFFLOAD_FRAMES, *_GENERIC_FRAMES, "lmcache", "nixl", "mooncake")
    return any(part in place for place in tail for part in parts)


def _crashed_there(event: Event, _life: Life) -> str:
    """The connector at the top of the native stack of a crash, or an empty string."""
    top = event.text[:500].lower()
    return next((name for name in ("nixl", "lmcache", "mooncake") if name in top), "")


CAUSE = Cause(
    slug="kv-connector",
    code="C3",
    title=T("KV transfer or offloading", "KV 传输与卸载"),
    summary=T(
        "A KV connector (LMCache, NIXL, Mooncake, offloading, a plug-in) failed inside the engine.",
        "引擎内的 KV connector（LMCache、NIXL、Mooncake、卸载、插件）出错。",
    ),
    subtypes=SUBTYPES,
    signatures=(
        Signature(
            "transfer-hang",
            any=(_AWAITED,),
            kinds=("log",),
            when=_never_arrives,
            strength=SYMPTOM,
            certainty="possible",
        ),
        Signature(
            "nixl",
            any=("NIXL_ERR_", "nixlBackendError", "Remote NIXL agent", "NIXL transfer failure"),
            none=("CUDA error",),
        ),
        Signature("nixl", any=("nixl_agent_meta", "BAD_STATUS"), frames=("nixl",)),
        Signature(
            "config",
            any=(
                "Unsupported connector type",
                "does not support HMA but HMA is enabled",
                "uses deprecated 2-argument constructor signature",
                "Please specify kv_role when kv_connector is set",
                "Please specify kv_disagg_role when kv_connector is set",
                "Unsupported kv_role",
                "is incompatible with PYTORCH_CUDA_ALLOC_CONF=expandable_segments",
                "You must set kv_offloading_size when kv_offloading_backend is set",
                "Multiple KV cache groups are not currently supported with KV connectors",
                "KV connector only supports one KV cache group",
                "Initialize MooncakeDistributedStore failed",
                "MOONCAKE_CONFIG_PATH",
                "NIXL is not available",
                "which is not supported for models with multiple KV cache groups. Connectors must",
            ),
            kinds=("exception", "wrapper"),
        ),
        # A C assertion names its source file and function.
        Signature(
            "mooncake",
            any=(": Assertion `",),
            all=("ooncake",),
            kinds=("native", "plain", "log"),
            certainty="supported",
        ),
        Signature("connector", none=_OTHERS, when=_raised_there, kinds=("exception",)),
        Signature(
            "connector",
            when=lambda event, life: bool(_crashed_there(event, life)),
            kinds=("native",),
            certainty="supported",
        ),
        Signature("connector", when=counts_external_tokens, kinds=("exception",), certainty="supported"),
        Signature(
            "connector",
            any=("Worker failed with KV connector output", "Failed to reset the KV connector cache"),
            strength=SYMPTOM,
            certainty="supported",
        ),
    ),
    refine=_fill,
    order=15,
)
