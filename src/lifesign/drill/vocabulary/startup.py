"""Start-up faults that need no injection: wrong files, wrong settings, a host that is too small. Real vLLM only."""

from __future__ import annotations

from lifesign.drill import texts
from lifesign.drill.model import Expect, Fate, Fault, Hook, Raise, Start
from lifesign.text import T

LOAD = "startup-load"


def _fault(
    name: str,
    en: str,
    zh: str,
    expect: Expect,
    start: Start,
    *,
    needs: tuple[str, ...] = (),
    bound_s: float = 150.0,
    kernel_log: bool = False,
    ci: bool = False,
    fate: Fate = "dies",
) -> Fault:
    return Fault(
        name,
        T(en, zh),
        expect,
        "start-up",
        start,
        engines=("vllm",),
        needs=needs,
        bound_s=bound_s,
        kernel_log=kernel_log,
        ci=ci,
        fate=fate,
    )


def _load(subtype: str, *decisive: str, also: tuple[str, ...] = ()) -> Expect:
    return Expect("model-load", subtype, LOAD, (), also, decisive)


FILES = (
    _fault(
        "model-path-missing",
        "the model folder doesn't exist",
        "模型目录不存在",
        _load(
            "path-missing",
            "Repo id must",
            "HFValidationError",
            "does not exist",
            "Invalid repository ID",
            also=("hf-download",),
        ),
        Start(model_id="/srv/models/no-such-model"),
        ci=True,
    ),
    _fault(
        "hub-offline",
        "a hub id with HF_HUB_OFFLINE=1 and an empty cache",
        "HF_HUB_OFFLINE=1，且本地缓存里没有这个模型",
        _load(
            "hf-download",
            "LocalEntryNotFoundError",
            "OfflineModeIsEnabled",
            "offline mode",
            "couldn't connect to",
        ),
        Start(model_id="example-org/example-7b", env=(("HF_HUB_OFFLINE", "1"),)),
    ),
    _fault(
        "config-missing",
        "the folder has no config.json",
        "目录里没有 config.json",
        _load(
            "config-missing",
            "does not appear to have a file named config.json",
            "Can't load the configuration",
            "No such file or directory",
            "Invalid repository ID",
            also=("path-missing", "config-or-code", "config-corrupt"),
        ),
        Start(model="no-config"),
    ),
    _fault(
        "config-bad-json",
        "config.json isn't JSON",
        "config.json 不是合法 JSON",
        _load("config-corrupt", "JSONDecodeError", "is not a valid JSON file", also=("config-or-code",)),
        Start(model="bad-config"),
    ),
    _fault(
        "architecture-unknown",
        "config.json names an architecture that vLLM doesn't have",
        "config.json 里的架构 vLLM 不支持",
        _load("unsupported-arch", "are not supported for now", "is not supported", "has no vLLM implementation"),
        Start(model="unknown-architecture"),
    ),
    _fault(
        "model-type-unknown",
        "config.json has a model_type that transformers doesn't know",
        "config.json 的 model_type transformers 不认识",
        _load(
            "unsupported-arch", "does not recognize this architecture", also=("config-or-code", "transformers-mismatch")
        ),
        Start(model="unknown-type"),
    ),
    _fault(
        "weights-missing",
        "the folder has no weights",
        "目录里没有权重文件",
        _load("weights-file-missing", "Cannot find any model weights", also=("path-missing",)),
        Start(model="no-weights"),
    ),
    _fault(
        "weights-truncated",
        "the weights are cut in half (a broken download)",
        "权重文件只下载了一半",
        _load("corrupt-or-partial-download", "SafetensorError", "MetadataIncompleteBuffer", "incomplete metadata"),
        Start(model="truncated"),
        ci=True,
    ),
    _fault(
        "weights-garbage",
        "the weights are random bytes",
        "权重文件是乱码",
        _load("corrupt-or-partial-download", "SafetensorError", "HeaderTooLarge"),
        Start(model="garbage"),
    ),
    _fault(
        "weights-lfs-pointer",
        "the weights are a git-lfs pointer",
        "权重只是 git-lfs 指针",
        _load("corrupt-or-partial-download", "SafetensorError", "HeaderTooLarge", also=("lfs-pointer",)),
        Start(model="lfs-pointer"),
    ),
    _fault(
        "weights-wrong-shape",
        "config.json doesn't belong to the weights",
        "config.json 与权重不配套",
        _load(
            "weights-mismatch",
            "must match the size of tensor",
            "Attempted to load weight",
            "size mismatch",
        ),
        Start(model="wrong-shape"),
    ),
    _fault(
        "weights-incomplete",
        "a whole layer is missing from the weights",
        "权重里缺一整层",
        _load(
            "weights-mismatch",
            "were not initialized from",
            also=("corrupt-or-partial-download", "weights-file-missing"),
        ),
        Start(model="missing-layer"),
    ),
    _fault(
        "tokenizer-missing",
        "the folder has no tokenizer",
        "目录里没有 tokenizer",
        _load(
            "tokenizer-missing",
            "instantiate the backend tokenizer",
            "Can't load tokenizer",
            also=("transformers-mismatch",),
        ),
        Start(model="no-tokenizer"),
    ),
    _fault(
        "lora-missing",
        "a LoRA adapter that is to be loaded at the start doesn't exist",
        "启动时要加载的 LoRA 目录不存在",
        _load("lora-missing", "No adapter found for", "adapter_config.json"),
        Start(args=("--enable-lora", "--lora-modules", "extra=/srv/adapters/none")),
    ),
)

SETTINGS = (
    _fault(
        "max-len-over-model",
        "--max-model-len above what the model was trained for",
        "--max-model-len 超过模型支持的长度",
        Expect("user-config", "max-model-len", LOAD, decisive=("User-specified max_model_len",)),
        Start(max_model_len=4096),
        ci=True,
    ),
    _fault(
        "kv-too-small",
        "the KV cache can't hold one request of the maximum length",
        "KV cache 装不下一条最长请求",
        Expect(
            "device-oom",
            "kv-too-small",
            "profile-warmup",
            decisive=("To serve at least one request",),
        ),
        Start(model="long", max_model_len=8192, args=("--num-gpu-blocks-override", "4")),
    ),
    _fault(
        "kv-over-memory",
        "more KV cache is asked for than the machine has memory",
        "要求的 KV cache 超过机器内存",
        Expect(
            "device-oom",
            "kv-requested-gt-free",
            "profile-warmup",
            decisive=("on kv cache allocation is less than", "is less than requested memory for kv"),
        ),
        Start(env=(("VLLM_CPU_KVCACHE_SPACE", "5000"),)),
    ),
    _fault(
        "flag-unknown",
        "a flag that doesn't exist",
        "不存在的命令行参数",
        Expect("user-config", "unknown-flag", LOAD, decisive=("unrecognized arguments",)),
        Start(args=("--no-such-flag",)),
        ci=True,
    ),
    _fault(
        "flag-bad-value",
        "a flag with a value of the wrong type",
        "命令行参数的值类型不对",
        Expect(
            "user-config",
            "bad-flag-value",
            LOAD,
            accept_subtypes=("unknown-flag", "bad-value", "bad-argument"),
            decisive=("error: argument", "invalid"),
        ),
        Start(args=("--max-num-batched-tokens", "many")),
    ),
    _fault(
        "env-bad-value",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=abc",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=abc",
        Expect("user-config", "bad-env-value", LOAD, decisive=("invalid literal for int()",)),
        Start(env=(("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "abc"),)),
    ),
    _fault(
        "tensor-parallel-odd",
        "--tensor-parallel-size 3 for two attention heads",
        "2 个注意力头却设 --tensor-parallel-size 3",
        Expect(
            "user-config",
            "tp-divisibility",
            LOAD,
            accept_subtypes=("tp-gt-gpus", "tp-not-divisible", "bad-value"),
            decisive=("must be divisible by tensor parallel size",),
        ),
        Start(args=("--tensor-parallel-size", "3")),
    ),
    _fault(
        "fault-tolerance-alone",
        "--enable-fault-tolerance without what it needs",
        "只加 --enable-fault-tolerance，缺少前提条件",
        Expect("user-config", "fault-tolerance-flags", LOAD, decisive=("Fault tolerance requires", "ault tolerance")),
        Start(args=("--enable-fault-tolerance",)),
    ),
    _fault(
        "ready-limit-short",
        "VLLM_ENGINE_READY_TIMEOUT_S=5, shorter than the start: newer releases come up all the same",
        "VLLM_ENGINE_READY_TIMEOUT_S=5，比启动还短：新版本照样能起来",
        Expect(
            "not-a-crash",
            "healthy",
            LOAD,
            accept_subtypes=("clean-shutdown", "orderly-shutdown", "slow-load", "slow-step"),
        ),
        Start(env=(("VLLM_ENGINE_READY_TIMEOUT_S", "5"),)),
        fate="lives",
    ),
    Fault(
        "ready-timeout",
        T("the engine isn't ready within VLLM_ENGINE_READY_TIMEOUT_S", "引擎没能在 VLLM_ENGINE_READY_TIMEOUT_S 内就绪"),
        Expect("timeout-hang", "engine-ready-timeout", LOAD, decisive=("Timed out waiting for engine core",)),
        when="start-up",
        hook=Hook("api.wait", (Raise("TimeoutError", texts.READY_TIMEOUT),)),
        engines=("vllm",),
    ),
)

HOST = (
    _fault(
        "port-in-use",
        "another process listens on the port",
        "端口已被占用",
        Expect("host-resource", "port-in-use", LOAD, decisive=("Address already in use", "address already in use")),
        Start(port_taken=True),
        ci=True,
    ),
    _fault(
        "shm-64m",
        "/dev/shm has 64 MiB, docker's default",
        "/dev/shm 只有 64 MiB（docker 默认值）",
        Expect("host-resource", "shm-too-small", LOAD, decisive=("Insufficient space", "/dev/shm")),
        Start(shm_kib=64 * 1024),
        needs=("linux", "mount-namespace"),
    ),
    _fault(
        "shm-4k",
        "/dev/shm has one page",
        "/dev/shm 只有一页",
        Expect(
            "host-resource",
            "shm-too-small",
            LOAD,
            decisive=("Insufficient space", "/dev/shm", "No space left on device"),
        ),
        Start(shm_kib=4),
        needs=("linux", "mount-namespace"),
    ),
    _fault(
        "shm-read-only",
        "/dev/shm is read-only",
        "/dev/shm 只读",
        Expect(
            "host-resource",
            "shm-too-small",
            LOAD,
            accept_subtypes=("permission", "shm-read-only"),
            decisive=("Insufficient space", "/dev/shm", "Read-only file system"),
        ),
        Start(shm_read_only=True),
        needs=("linux", "mount-namespace"),
    ),
    _fault(
        "few-file-descriptors",
        "RLIMIT_NOFILE=64",
        "RLIMIT_NOFILE=64（文件描述符太少）",
        Expect("host-resource", "fd-limit", LOAD, decisive=("Too many open files",)),
        Start(open_files=64),
        needs=("linux",),
    ),
    _fault(
        "address-space-limit",
        "RLIMIT_AS of 3 GiB (ulimit -v)",
        "RLIMIT_AS 3 GiB（ulimit -v）",
        Expect(
            "host-oom",
            "cpu-allocator-enomem",
            "profile-warmup",
            accept_subtypes=("python-memoryerror",),
            decisive=("can't allocate memory", "Cannot allocate memory", "MemoryError"),
        ),
        Start(address_space_mib=3072),
        needs=("linux",),
    ),
    _fault(
        "cgroup-start",
        "a container of 900 MiB",
        "容器只有 900 MiB 内存",
        Expect(
            "host-oom",
            "cgroup-limit",
            LOAD,
            accept=("silent-death",),  # where the kernel log may not be read
            accept_subtypes=(
                "kernel-oom-killer",
                "sigkill",
            ),
            decisive=(
                "Memory cgroup out of memory",
                "oom-kill:constraint=CONSTRAINT_MEMCG",
                "died unexpectedly",
                "Failed core proc",
            ),
        ),
        Start(cgroup_mib=900),
        needs=("linux", "memory-cgroup"),
        kernel_log=True,
        bound_s=180,
    ),
)

FAULTS = (*FILES, *SETTINGS, *HOST)
