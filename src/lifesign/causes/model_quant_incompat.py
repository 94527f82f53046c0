"""model-quant-incompat: the way the checkpoint is quantised doesn't fit the model code, the split over GPUs, or the GPU.

A KeyError that names a scale, a shard that isn't a whole number of quantisation groups, a kernel that this GPU generation
lacks. What looks like a bug in model code (`shape '[...]' is invalid`) belongs here only when the model is quantised.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from lifesign.causes import _reading as reading
from lifesign.causes._quant import LOAD_FRAMES, QUANT_NAMES, QUANT_SUFFIX, is_quantised, quantised_layer
from lifesign.causes.model import SYMPTOM, Cause, Finding, Signature, Subtype
from lifesign.facts.model import Event, Life, Phase
from lifesign.remedies.library import graphs, loading
from lifesign.remedies.model import LESS, Computed, Form, Remedy
from lifesign.text import T, is_whole


def _tensor_ranks(life: Life) -> int:
    """The tensor-parallel size in the log, or the number of ranks."""
    named = str(life.config.get("tensor_parallel_size", ""))
    return int(named) if is_whole(named) else life.world_size


def _half_the_ranks(life: Life) -> Computed | None:
    """Half the tensor-parallel size where the message has no sizes to compute with."""
    ranks = _tensor_ranks(life)
    if ranks < 2:
        return None
    half = str(max(1, ranks // 2))
    return Computed(half, T("half of the present size", "现有大小的一半"))


FEWER_RANKS = Remedy(
    slug="split-over-fewer-gpus",
    kind="flag",
    title=T("split the model over fewer GPUs", "减少张量并行的 GPU 数"),
    why=T(
        "Each rank must get a whole number of quantisation groups (and of the kernel's tiles); a smaller --tensor-parallel-size gives larger shards. Pipeline parallelism splits by layers instead.",
        "每个 rank 分到的必须是量化组（以及内核分块）的整数倍；--tensor-parallel-size 小一些，分片就大一些。流水线并行按层切分，不受此限。",
    ),
    forms=(Form("--tensor-parallel-size", "{value}"),),
    cost=T("more memory per GPU", "每块 GPU 占用更多显存"),
    value=_half_the_ranks,
    unless=lambda life: life.world_size < 2,
    source="vLLM error text of the Marlin shape check",
)
PIPELINE_INSTEAD = Remedy(
    slug="pipeline-instead",
    kind="flag",
    title=T("use the other GPUs by pipeline parallelism", "其余 GPU 改用流水线并行"),
    why=T("Layers are not cut, so group sizes don't matter.", "层不会被切开，量化组大小就无所谓了。"),
    forms=(Form("--pipeline-parallel-size", "2"),),
    cost=T("higher latency of a single request", "单个请求延迟更高"),
    unless=lambda life: life.world_size < 2,
)
EXPERT_PARALLEL = Remedy(
    slug="expert-parallel",
    kind="flag",
    title=T("for mixture-of-experts models: whole experts per GPU", "MoE 模型：按专家切分"),
    why=T("With expert parallelism no expert's weights are cut.", "专家并行时不会切开单个专家的权重。"),
    forms=(Form("--enable-expert-parallel"),),
    cost=T("more traffic between the GPUs", "卡间通信变多"),
)
OTHER_KERNEL = loading.PLAIN_GPTQ
PLAIN_AWQ = Remedy(
    slug="plain-awq",
    kind="flag",
    title=T("the plain AWQ kernels", "改用普通 AWQ 内核"),
    why=T("They don't have Marlin's demand on the size of each shard.", "它没有 Marlin 对分块大小的要求。"),
    forms=(Form("--quantization", "awq"),),
    cost=T("slower", "变慢"),
)
REQUANTISE = loading.OTHER_QUANTISATION
QUANT_CONFIG = Remedy(
    slug="quantization-config",
    kind="check",
    title=T("look at how the checkpoint was quantized", "查看检查点的量化方式"),
    why=T(
        "quantization_config in config.json names method, group size and ignored layers; the names of the tensors must fit it. Fused or renamed layers and mixed files don't.",
        "config.json 里的 quantization_config 写明方法、group size 和忽略的层；张量名必须与之一致。合并过或改过名的层、混用的文件都会对不上。",
    ),
    command="python -c \"import json; print(json.dumps(json.load(open('MODEL_DIR/config.json')).get('quantization_config'), indent=1))\"",
)
NEWER_FOR_CHECKPOINT = Remedy(
    slug="version-for-checkpoint",
    kind="upgrade",
    title=T(
        "a vLLM version that knows this checkpoint layout (compressed-tensors, ModelOpt, GPTQModel)",
        "换用认识这种检查点格式的 vLLM 版本（compressed-tensors、ModelOpt、GPTQModel）",
    ),
    why=T(
        "Quantisation tools add tensors that older releases don't expect; the model card names the version.",
        "量化工具会加入旧版本不认识的张量；模型卡会写明版本。",
    ),
    command="pip install -U vllm compressed-tensors",
)
DOWNLOAD_AGAIN = loading.REDOWNLOAD
FORMAT_FOR_GPU = loading.NEWER_GPU_OR_QUANT
HALF_PRECISION = Remedy(
    slug="unquantised",
    kind="check",
    title=T("or run the unquantized model, or a newer GPU", "或者运行未量化的模型，或换新一代 GPU"),
    why=T("Then no quantised kernel is needed.", "这样就不需要量化内核。"),
)
RELEASE_WITH_KERNEL = Remedy(
    slug="release-with-kernel",
    kind="upgrade",
    title=T("upgrade to a release whose kernels cover this GPU", "升级到内核支持这块 GPU 的版本"),
    why=T(
        "INT8 on capability 7.5 works from 0.6.2 on in some formats; check the release notes.",
        "7.5 计算能力的 INT8 从 0.6.2 起部分格式可用；请看发行说明。",
    ),
)
FP8_INSTEAD = Remedy(
    slug="fp8-instead",
    kind="check",
    title=T("use the FP8 version of the model", "改用该模型的 FP8 版本"),
    why=T(
        "Reports of GPTQ-Int4 checkpoints that die at certain batch sizes agree that FP8 of the same model works.",
        "有报告称 GPTQ-Int4 在某些批大小会崩，而同一模型的 FP8 正常。",
    ),
)
GPTQ_MARLIN = loading.GPTQ_MARLIN
NO_DEEP_GEMM = replace(
    graphs.NO_DEEP_GEMM,
    title=T("for FP8 models: switch DeepGEMM off", "FP8 模型：关闭 DeepGEMM"),
    why=T(
        "It is on by default from 0.11.0 and has shape rules of its own.", "0.11.0 起默认开启，它对形状有自己的要求。"
    ),
)
TEXT_MODEL = Remedy(
    slug="text-only-model",
    kind="check",
    title=T("for text only: use the text-only model instead of the vision model", "只用文本时：改用纯文本模型"),
    why=T(
        "A vision checkpoint served for text passes through layers that the quantisation left out.",
        "多模态检查点当纯文本用时，会经过量化时没处理的层。",
    ),
)
EAGER_PROOF = replace(
    graphs.EAGER,
    slug="eager-proof",
    title=T("to narrow it down: run without CUDA graphs", "缩小范围：不用 CUDA graph 运行"),
    why=T("If only certain graph sizes fail, it works in eager mode.", "如果只有某些图大小出错，eager 模式就正常。"),
)
SAME_METHOD = Remedy(
    slug="drop-quantization-flag",
    kind="check",
    title=T("leave --quantization out", "去掉 --quantization 参数"),
    why=T(
        "vLLM reads the method from the checkpoint; a different one on the command line is refused.",
        "vLLM 会从检查点读取方法；命令行写了别的就会被拒绝。",
    ),
)
DTYPE = Remedy(
    slug="dtype-for-method",
    kind="flag",
    title=T("use the data type that the method supports", "使用该方法支持的数据类型"),
    why=T("AWQ and GPTQ kernels of older releases take float16 only.", "旧版本的 AWQ、GPTQ 内核只支持 float16。"),
    forms=(Form("--dtype", "float16"),),
    cost=T("some models overflow in float16", "部分模型用 float16 会溢出"),
)


def _loading(event: Event, life: Life) -> bool:
    """Whether a log record with a bare tensor name belongs to loading (V0 prints `'...weight_scale'` first)."""
    return event.phase is Phase.LOAD and (event.kind != "log" or event.level in ("ERROR", "CRITICAL"))


_SHARD = re.compile(
    r"(?:(?:in|out)put_(?:size_per_partition|partition_size) ?|(?:in|out)put_size of [\w' ]{1,60}weight )= ?(\d{1,7}) is not divisible by [a-z_ ]{1,40}= ?(\d{1,5})"
)

_OF_EXPERTS = re.compile(r"(?i)moe|expert|gate's and up's weight|down's weight")
"""The last two name weights of experts only (vllm fp8.py, `Fp8MoEMethod.create_weights`)."""


_NO_SPLIT = T(
    "The whole layer has {whole} columns, which is no multiple of {unit} either: no number of GPUs fits. A later release may pad such layers; else the checkpoint must be quantised otherwise.",
    "整层共有 {whole} 列，本身就不是 {unit} 的倍数：换任何 GPU 数都不行。新版本可能会补齐这种层；否则只能换一种量化。",
)


def _split_advice(finding: Finding, life: Life) -> tuple[Remedy, ...]:
    """Computes the largest split whose shards are whole; leaves out what can't help this model."""
    text = finding.event.text
    event = finding.event
    ranks = _tensor_ranks(life)
    remedies: list[Remedy] = [FEWER_RANKS]
    match = _SHARD.search(text[:600])
    fitting = 0
    if match and ranks > 1:
        whole, unit = int(match[1]) * ranks, int(match[2])
        # Among the divisors of the present size: by others the attention heads, which went by this one, may not go.
        fitting = next((tp for tp in range(ranks - 1, 0, -1) if ranks % tp == 0 and (whole // tp) % unit == 0), 0)
        remedies = []
        if fitting:
            shard = whole // fitting
            how = f"{match[1]} x {ranks} = {whole}; {whole} / {fitting} = {shard} = {shard // unit} x {unit}"
            remedies = [reading.with_value(FEWER_RANKS, str(fitting), T(how, how), event.line, LESS)]
        if whole % unit:
            # Not even one GPU holds whole groups: no way of splitting helps.
            return (replace(NEWER_FOR_CHECKPOINT, why=_NO_SPLIT.fill(whole=whole, unit=unit)), REQUANTISE)
    name = f"{life.model} {life.config.get('quantization', '')}".lower()
    mixture = _OF_EXPERTS.search(text[:600]) or (event.exc is not None and event.exc.passes("moe"))
    rest = ranks // fitting if match and fitting else 2
    remedies.append(replace(PIPELINE_INSTEAD, forms=(Form("--pipeline-parallel-size", str(rest)),)))
    if mixture:
        remedies.append(EXPERT_PARALLEL)
    if "min_thread" in text or "tile_" in text:
        remedies.append(PLAIN_AWQ if "awq" in name else OTHER_KERNEL)
    return (*remedies, REQUANTISE)


def _refine(finding: Finding, life: Life) -> Finding | None:
    if finding.subtype == "weight-name-mismatch":
        match = re.search(r"['\"]([\w.\-]{3,160})['\"]", finding.event.text)
        if match:
            finding.values["tensor"] = match[1]
    if finding.subtype == "tp-divisibility":
        finding.remedies = _split_advice(finding, life)
    if finding.event.text.startswith("ValidationError"):
        return reading.cite(finding, "Value error,")
    return finding


SUBTYPES = {
    "tp-divisibility": Subtype(
        T("The quantised weights can't be split over this many GPUs", "量化权重无法按这个 GPU 数切分"),
        T(
            "Tensor parallelism cuts a layer into shards that are no whole number of quantisation groups or kernel tiles. The same text also appears for a layer that can't be grouped at all.",
            "张量并行切出的分片不是量化组或内核分块的整数倍。有的层本身就无法分组，也会报同样的错。",
        ),
        (FEWER_RANKS, PIPELINE_INSTEAD, EXPERT_PARALLEL, OTHER_KERNEL, REQUANTISE),
        ("vllm#17604",),
    ),
    "weight-name-mismatch": Subtype(
        T(
            "The checkpoint holds quantisation tensors that the model code doesn't expect",
            "检查点里的量化张量与模型代码对不上",
        ),
        T(
            "Loading met a scale, zero point or index for a layer that isn't quantised in this vLLM, or missed one. It is a mismatch between the quantising tool and this release, not a defect of your command.",
            "加载时遇到了本版本没有量化的层的 scale、zero point 或索引，或者缺少它们。这是量化工具与 vLLM 版本不匹配，不是命令写错。",
        ),
        (QUANT_CONFIG, NEWER_FOR_CHECKPOINT, REQUANTISE, DOWNLOAD_AGAIN),
    ),
    "gpu-capability": Subtype(
        T("This GPU generation has no kernel for the checkpoint's quantisation", "这代 GPU 没有该量化格式的内核"),
        T(
            "The quantised matrix kernels of this release need a newer compute capability. Compiling again for another architecture doesn't add a kernel that doesn't exist.",
            "这个版本的量化矩阵内核要求更高的计算能力。内核本来就没有，重新编译也不会多出来。",
        ),
        (FORMAT_FOR_GPU, RELEASE_WITH_KERNEL, HALF_PRECISION),
    ),
    "shape-mismatch": Subtype(
        T("A quantised layer got a shape its kernel can't handle", "量化层遇到了内核处理不了的形状"),
        T(
            "The model is quantised, and a layer failed with a shape error; some kernels do so only at certain batch sizes. Reports of this kind say that the FP8 or unquantised version of the same model works.",
            "模型是量化的，某一层报形状错误；有些内核只在特定批大小下才出错。同类报告里，同一模型的 FP8 版或未量化版是正常的。",
        ),
        (FP8_INSTEAD, GPTQ_MARLIN, NO_DEEP_GEMM, EAGER_PROOF, TEXT_MODEL, NEWER_FOR_CHECKPOINT),
    ),
    "method-mismatch": Subtype(
        T("The quantisation method is unknown here or contradicts the checkpoint", "量化方法未知，或与检查点矛盾"),
        T(
            "--quantization names another method than the checkpoint, the method was removed from this release, or this platform or data type doesn't support it.",
            "--quantization 与检查点不一致、该方法已从这个版本移除，或者平台、数据类型不支持。",
        ),
        (SAME_METHOD, DTYPE, NEWER_FOR_CHECKPOINT, REQUANTISE),
    ),
}

_NAME = rf"(?:KeyError: )?['\"][\w.\-]{{1,200}}(?:{QUANT_SUFFIX})\w{{0,20}}['\"]"

SIGNATURES = (
    Signature(
        "tp-divisibility",
        any=(
            "is not divisible by min_thread_k",
            "is not divisible by min_thread_n",
            "input size is not aligned with the quantized weight shape",
            "output size is not aligned with the quantized weight shape",
            "is not divisible by weight quantization block_",
            "is not divisible by tile_n_size",
            "is not divisible by tile_k_size",
            "not divisible by quantization block",
            "not divisible by pack_factor",
            "is not divisible by group_size",
            "must be divisible by group_size",
        ),
        when=reading.is_loud,
    ),
    Signature(
        "tp-divisibility",
        any=("input_size_per_partition", "output_size_per_partition", "intermediate_size_per_partition"),
        regex=r"divisible|multiple|aligned",
        kinds=("exception", "wrapper"),
        certainty="supported",
    ),
    Signature(
        "gpu-capability",
        any=(
            "No compiled cutlass_scaled_mm for",
            "is not supported for the current GPU. Minimum capability",
            "No compiled cutlass_moe_mm",
            "No compiled get_cutlass",
            "fp8e4nv not supported in this architecture",
            "type fp8e4nv not supported",
            "Marlin requires compute capability",
            "No compiled nvfp4",
            "FP8 requires compute capability",
        ),
        none=("TORCH_CUDA_ARCH_LIST was set incorrectly",),
        when=reading.is_loud,
    ),
    Signature("gpu-capability", all=("Failed to find a kernel that can implement",), certainty="supported"),
    Signature(
        "gpu-capability",
        any=(
            "_scaled_mm` is only supported on CUDA devices with compute capability",
            "is not supported on device capability",
        ),
        certainty="supported",
    ),
    Signature(
        "weight-name-mismatch",
        any=QUANT_NAMES,
        types=("KeyError",),
        frames=LOAD_FRAMES,
        regex=QUANT_SUFFIX,
        kinds=("exception",),
    ),
    Signature(
        "weight-name-mismatch",
        types=("KeyError",),
        frames=LOAD_FRAMES,
        when=quantised_layer,
        kinds=("exception",),
        certainty="supported",
    ),
    Signature(
        "weight-name-mismatch", types=("KeyError",), regex=_NAME, kinds=("exception", "wrapper"), phases=(Phase.LOAD,)
    ),
    Signature(
        "weight-name-mismatch",
        any=QUANT_NAMES,
        regex=rf"^{_NAME}$",
        kinds=("log", "wrapper"),
        when=_loading,
        certainty="supported",
        strength=SYMPTOM,
    ),
    Signature(
        "weight-name-mismatch",
        any=(
            "There is no module or parameter named",
            "weights were not initialized from checkpoint",
            "has no attribute 'weight",
        ),
        regex=QUANT_SUFFIX,
        frames=LOAD_FRAMES,
        kinds=("exception",),
    ),
    Signature(
        "method-mismatch",
        any=(
            "does not match the quantization method specified in the `quantization` argument",
            "Unknown quantization method",
            "unknown quantization name",
            "conflicts with quantization_config",
            "`quantization_config` for online quantization",
            "Invalid quantization method",
            "quantization is currently not supported in",
            "is not supported for quantization method",
            "loader does not support",
            "does not support BitsAndBytes quantization",
            "Prequant BitsAndBytes",
            "BitsAndBytes 8bit quantization",
            "Unknown ModelOpt quant algo",
            "Found unknown quantization=",
            "Unsupported quantization config found for",
            "Cannot find the config file for",
            "No compressed-tensors compatible scheme was found",
            "Unsupported FusedMoe scheme",
            "is deprecated and will be removed in future versions of vLLM. To bypass, set `--allow-deprecated-quantization`",
            "is only supported when quantization is one of",
        ),
        kinds=("exception", "wrapper"),
    ),
    Signature(
        "shape-mismatch",
        all=("is invalid for input of size",),
        regex=r"shape '\[",
        when=is_quantised,
        kinds=("exception",),
        certainty="supported",
    ),
    Signature(
        "shape-mismatch",
        any=(
            "mat1 and mat2 shapes cannot be multiplied",
            "Invalid thread config",
            "must match the size of tensor",
            "Invalid tile",
            "Unsupported shape",
            "b_q_weight",
        ),
        frames=("layers/quantization", "marlin", ":gptq", "awq", "deep_gemm", "cutlass"),
        no_frames=LOAD_FRAMES,
        kinds=("exception",),
        certainty="supported",
    ),
    Signature(
        "shape-mismatch",
        any=("must match the size of tensor", "exceeds dimension size", "shape mismatch"),
        frames=LOAD_FRAMES,
        regex=QUANT_SUFFIX,
        kinds=("exception",),
        certainty="supported",
    ),
)

CAUSE = Cause(
    slug="model-quant-incompat",
    code="B4",
    title=T("The checkpoint's quantisation doesn't fit", "检查点的量化方式不匹配"),
    summary=T(
        "The quantised checkpoint can't be split, loaded or run as asked: group sizes, tensor names, kernels of this GPU, or shapes.",
        "量化后的检查点无法按要求切分、加载或运行：分组大小、张量名、GPU 内核或形状不合适。",
    ),
    subtypes=SUBTYPES,
    signatures=SIGNATURES,
    refine=_refine,
    order=6,
    classical=6,
)
