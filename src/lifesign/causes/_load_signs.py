"""What a model that can't be loaded looks like in a log: the signatures of model-load.

Texts of huggingface_hub, transformers, safetensors and modelscope are theirs; a transport error only counts when it
belongs to a download, because the same words (connection refused, timed out) stand for other failures as well.
"""

from __future__ import annotations

import re

from lifesign.causes import _reading as reading
from lifesign.causes._quant import LOAD_FRAMES, QUANT_SUFFIX, quantised_layer
from lifesign.causes.model import SYMPTOM, Signature
from lifesign.facts.model import Event, Life, Phase

HUBS = ("huggingface", "hf.co", "modelscope", "hf-mirror", "Hugging Face", "/resolve/", "the Hub", "snapshot")
DRAFT_FRAMES = ("eagle", "medusa", "mtp", "draft_model", "spec_decode", "mlp_speculator", "dflash", "dspark")


def _not_one_request(event: Event, life: Life) -> bool:
    """Whether the text ended more than a request, and is neither a notice nor a source line of a traceback."""
    if event.kind == "plain" and event.text.lstrip().startswith(("raise ", "File ", "except ", "from ")):
        return False
    return event.weight != "request" and reading.is_loud(event, life)


def _from_a_hub(event: Event, life: Life) -> bool:
    """Whether a transport error belongs to a download: its text, frames or neighbours name a hub."""
    if event.has(*HUBS):
        return True
    if event.exc is not None and event.exc.passes(
        "huggingface_hub", "modelscope", "transformers/utils/hub", "weight_utils", ":get_config", "hf_api"
    ):
        return True
    return life.after(event, *HUBS, "LocalEntryNotFoundError", within=12) is not None


def _quantised_name(event: Event, life: Life) -> bool:
    return re.search(QUANT_SUFFIX, event.text[:600]) is not None


def _ends_in_transformers(event: Event, life: Life) -> bool:
    """Whether transformers itself, not a model's own code, stumbled over a tokenizer, processor or configuration."""
    if event.exc is None or not event.exc.frames or not _not_one_request(event, life):
        return False
    last = event.exc.frames[-1].file.replace("\\", "/")
    return "/transformers/" in last and "transformers_modules" not in last and "/utils/hub.py" not in last


def _in_loader(event: Event, life: Life) -> bool:
    """Whether the last frame of vLLM's own code is that of a model loader."""
    if event.exc is None or not _not_one_request(event, life):
        return False
    own = [frame.file.replace("\\", "/") for frame in event.exc.frames if "vllm/" in frame.file.replace("\\", "/")]
    return bool(own) and "model_executor/model_loader/" in own[-1]


def _plain_name(event: Event, life: Life) -> bool:
    if event.exc is not None and event.exc.short_type == "KeyError" and quantised_layer(event, life):
        return False
    return not _quantised_name(event, life)


def _not_inspected(event: Event, life: Life) -> bool:
    """Whether the refusal of an architecture is the true reason: its inspection did not fail, and it isn't listed."""
    if life.before(event, "Error in inspecting model architecture", "Error raised in subprocess") is not None:
        return False
    return not reading.is_listed(event, life)


def _config_frames(event: Event, life: Life) -> bool:
    """Whether a JSON error comes from the model's own files."""
    return event.exc is not None and event.exc.passes(
        "configuration_utils",
        "tokenization_utils",
        "transformers_utils",
        "image_processing",
        "processing_utils",
        ":_dict_from_json_file",
        "weight_utils",
        "AutoConfig",
        "tokenizer",
    )


UNKNOWN_TO_THE_HUB = (
    "Repository Not Found",
    "RepositoryNotFoundError",
    "is not a local folder and is not a valid model identifier",
)
"""What the hub and transformers say of a name that isn't there, or that one may not see."""

SIGNATURES = (
    Signature(
        "aux-download",
        any=(
            "vocab file",
            "openaipublic.blob.core.windows.net",
            "TIKTOKEN_ENCODINGS_BASE",
            "tiktoken_rs",
        ),
        regex=r"[Ee]rror|[Ff]ail|retries|Connection",
        none=("sentencepiece", "Tiktoken failed"),
        kinds=("exception", "wrapper"),
    ),
    Signature(
        "gated-token",
        # Not "private or gated repo": the hub adds that to every name that it doesn't know.
        any=(
            "GatedRepoError",
            "access a gated repo",
            "Cannot access gated repo",
            "awaiting a review from the repo authors",
        ),
        when=_not_one_request,
    ),
    Signature(
        "gated-token",
        any=(
            "401 Client Error",
            "403 Client Error",
            "401 Unauthorized",
            "403 Forbidden",
            "Invalid user token",
            "Invalid credentials in Authorization",
            "Token is required",
            "Invalid username or password",
        ),
        none=("HTTPError:", "HTTPStatusError:", "Repository Not Found"),
        when=_from_a_hub,
        kinds=("exception", "wrapper"),
    ),
    Signature(
        "gated-token",
        any=("401 Client Error", "403 Client Error", "401 Unauthorized", "403 Forbidden"),
        none=UNKNOWN_TO_THE_HUB,
        when=_from_a_hub,
        kinds=("exception",),
        strength=SYMPTOM,
        certainty="supported",
    ),
    Signature(
        "path-missing",
        any=(
            "Repo id must be in the form",
            "Repo id must use alphanumeric",
            "Invalid repository ID or local directory specified",
            "Incorrect path_or_model_id",
            "RevisionNotFoundError",
            "does not appear to have a file named config.json",
            "Can't load the configuration of",
            "Can't load config for",
            "no file named config.json",
            "Could not detect config format for no config file found",
            "is not a valid git identifier",
            "is not a valid tensorizer URI",
            "does not exist in the modelscope",
        ),
        when=_not_one_request,
    ),
    Signature(
        "path-missing",
        any=UNKNOWN_TO_THE_HUB,
        when=_not_one_request,
        certainty="supported",
    ),
    Signature(
        "corrupt-or-partial-download",
        any=(
            "SafetensorError",
            "Error while deserializing header",
            "PytorchStreamReader failed",
            "invalid load key",
            "git-lfs",
            "Consistency check failed",
            "Weight files referenced in index but missing",
            "Incomplete checkpoint headers",
            "Empty or invalid weight map",
            "Invalid checkpoint index entry",
            "unexpected EOF, expected",
            "is not a zip archive",
            "Missing keys {",
            "failed finding central directory",
            "file integrity",
            "incomplete, size",
        ),
        none=("fsspec",),
        when=_not_one_request,
    ),
    Signature(
        "corrupt-or-partial-download",
        any=("No such file or directory", "FileNotFoundError"),
        regex=r"\.(?:safetensors|bin|pt|pth|gguf|index\.json)\b",
        kinds=("exception", "wrapper"),
        phases=(Phase.LOAD,),
        certainty="supported",
    ),
    Signature(
        "weights-file-missing",
        any=(
            "Cannot find any model weights with",
            "Cannot find any safetensors model weights",
            "No model weights found in",
            "Could not find checkpoint files",
            "Downloaded GGUF files not found",
            "shard filter removed all weight files",
        ),
    ),
    Signature("config-corrupt", any=("is not a valid JSON file", "is not valid JSON")),
    Signature(
        "config-corrupt",
        any=("JSONDecodeError", "Expecting value: line", "Expecting property name"),
        when=_config_frames,
        kinds=("exception",),
    ),
    Signature(
        "transformers-mismatch",
        any=(
            "has no attribute all_special_tokens_extended",
            "is already used by a Transformers config",
            "Support for Transformers v4 is deprecated",
            "requires transformers>=",
            "Please upgrade to Transformers",
        ),
        kinds=("exception", "wrapper"),
        when=_not_one_request,
    ),
    Signature(
        "transformers-mismatch",
        any=(
            "did not match any variant of untagged enum",
            "does not exist or is not currently imported",
            "rope_scaling` must be a dictionary",
            "rope_scaling should have a 'rope_type' key",
            "rope_parameters should have a 'rope_type' key",
            "transformers>=",
        ),
        kinds=("exception", "wrapper"),
        when=_not_one_request,
        certainty="supported",
    ),
    Signature(
        "transformers-mismatch",
        any=("cannot import name", "has no attribute", "No module named"),
        regex=r"from 'transformers|module 'transformers|No module named 'transformers\.",
        kinds=("exception", "wrapper"),
        when=_not_one_request,
    ),
    Signature(
        "transformers-mismatch",
        any=("has no attribute", "unexpected keyword argument", "missing 1 required positional argument"),
        regex=r"\w*(?:Config|Tokenizer|TokenizerFast|TokenizersBackend|Processor|ImageProcessorFast)'? (?:object )?has no attribute|unexpected keyword|required positional",
        frames=("transformers/", "transformers_utils/", "tokenizer", "transformers\\"),
        kinds=("exception",),
        phases=(Phase.LOAD, Phase.PROFILE),
        none=("EngineArgs", "vllm_config", "VllmConfig"),
        certainty="supported",
    ),
    Signature(
        "tokenizer-missing",
        any=(
            "Couldn't instantiate the backend tokenizer",
            "Can't load tokenizer for",
            "Unable to load vocabulary from file",
            "Can't load image processor for",
            "Can't load feature extractor for",
            "Can't load processor for",
            "does not appear to have a file named preprocessor_config.json",
            "does not appear to have a file named processor_config.json",
            "Converting from SentencePiece and Tiktoken failed",
            "Converting from Tiktoken failed",
            "Failed to load the tokenizer",
            "Unrecognized processing class",
            "Unrecognized image processor",
            "No tokenizer file found",
        ),
        when=_not_one_request,
    ),
    Signature(
        "hf-download",
        any=(
            "LocalEntryNotFoundError",
            "outgoing traffic has been disabled",
            "We couldn't connect to",
            "An error happened while trying to locate the file on the Hub",
            "OfflineModeIsEnabled",
            "offline mode is enabled",
            "Cannot find the requested files in the disk cache",
            "CAS service error",
            "downloading using `hf_transfer`",
            "Fast download using 'hf_transfer' is enabled",
            "429 Client Error",
            "Distant resource does not seem to be on huggingface.co",
            "modelscope.hub.errors",
            "FileDownloadError",
            "Failed to download",
        ),
        none=("Connection reset by peer; retrying",),
        when=_not_one_request,
        kinds=("exception", "wrapper"),
    ),
    Signature(
        "hf-download",
        any=(
            "Max retries exceeded with url",
            "Name or service not known",
            "Temporary failure in name resolution",
            "Network is unreachable",
            "SSLError",
            "ProxyError",
            "ConnectTimeout",
            "ReadTimeout",
            "NewConnectionError",
            "ConnectError",
            "Server disconnected without",
            "IncompleteRead",
            "504 Server Error",
            "502 Server Error",
            "503 Server Error",
            "Connection aborted",
            "404 Client Error",
        ),
        when=_from_a_hub,
        kinds=("exception",),
        phases=(Phase.LOAD, Phase.PROFILE, Phase.CAPTURE),
        certainty="supported",
        strength=SYMPTOM,
    ),
    Signature(
        "unsupported-arch",
        any=(
            "Transformers does not recognize this architecture",
            "was supported in vLLM until",
            "is not supported in-tree anymore",
            "has no vLLM implementation and the Transformers implementation",
            "The Transformers implementation of",
            "No model architectures are specified",
            "is not a registered model in the Transformers library",
            "are not supported on Neuron",
            "is not supported by ROCm for now",
        ),
    ),
    Signature("gguf-arch", any=("GGUF model with architecture",)),
    Signature("unsupported-arch", all=("Model architectures [", "are not supported"), when=_not_inspected),
    Signature(
        "config-or-code",
        any=(
            "requires you to execute the configuration file in that repo",
            "contains custom code which must be executed",
            "Failed to load the model config. If the model is a custom model",
            "trust_remote_code=True",
            "Unrecognized model in",
            "Should have a `model_type` key",
            "Unrecognized configuration class",
            "This modeling file requires the following packages",
            "Failed to load mistral '",
            "Unknown gguf model_type",
            "Can't get gguf config for",
            "does not have `num_attention_heads` attribute",
            "Could not determine the number of key-value attention heads",
        ),
        none=("Model architectures [",),
        kinds=("exception", "wrapper"),
        when=_not_one_request,
    ),
    Signature(
        "config-or-code",
        any=(
            "Unknown config format",
            "Unsupported config format",
            "remote GGUF model repo",
            "needs to use original tokenizer",
        ),
        kinds=("exception", "wrapper"),
        certainty="supported",
    ),
    Signature(
        "transformers-mismatch",
        types=("AttributeError", "TypeError", "KeyError", "ImportError", "NameError"),
        when=_ends_in_transformers,
        kinds=("exception",),
        phases=(Phase.LOAD, Phase.PROFILE),
        none=("out of memory", "CUDA error", "EngineArgs"),
        certainty="supported",
        strength=SYMPTOM,
    ),
    Signature(
        "config-or-code",
        types=("ValueError", "KeyError", "AttributeError", "AssertionError", "TypeError", "RuntimeError"),
        frames=("transformers_utils/config", "configuration_utils.py", "AutoConfig", "configuration_auto.py"),
        kinds=("exception",),
        phases=(Phase.LOAD,),
        when=_not_one_request,
        certainty="supported",
        strength=SYMPTOM,
    ),
    Signature(
        "config-or-code",
        frames=("transformers_modules",),
        kinds=("exception",),
        phases=(Phase.LOAD,),
        certainty="supported",
        strength=SYMPTOM,
    ),
    Signature(
        "draft-model",
        any=(
            "Target and draft model should have the same vocabulary size",
            "DSpark draft",
            "has no classic-MTP draft",
            "does not contain MTP weights",
            "Model does not support EAGLE3 interface",
            "Eagle3 is only supported for",
            "draft model is not supported yet",
            "Draft model speculative decoding is not supported yet",
        ),
        kinds=("exception", "wrapper"),
    ),
    Signature(
        "weights-mismatch",
        any=(
            "Following weights were not initialized from checkpoint",
            "There is no module or parameter named",
            "Attempted to load weight (",
            "Trying to load weights of",
            "size mismatch for",
            "Failed to map GGUF parameters",
        ),
        when=_plain_name,
        kinds=("exception", "wrapper"),
    ),
    Signature(
        "weights-mismatch",
        any=(
            "must match the size of tensor",
            "shape mismatch",
            "start (0) + length",
            "exceeds dimension size",
            "param_data.shape == loaded_weight.shape",
            "is invalid for input of size",
        ),
        frames=LOAD_FRAMES,
        when=_plain_name,
        kinds=("exception",),
    ),
    Signature(
        "weights-mismatch",
        types=("KeyError", "AssertionError", "IndexError"),
        frames=LOAD_FRAMES,
        when=_plain_name,
        kinds=("exception",),
        phases=(Phase.LOAD,),
        certainty="supported",
    ),
    Signature(
        "lora-missing",
        any=(
            "Loading lora ",
            "adapter_config.json",
            "No adapter found for",
            "LoRA adapter",
        ),
        none=("max_lora_rank", "Error in loading LoRA adapter", "Loaded new LoRA", "is greater than"),
        kinds=("exception", "wrapper", "log"),
        when=_not_one_request,
    ),
    Signature(
        "lora-weights",
        any=("expected target modules in", "unsupported LoRA weight", "is unsupported LoRA"),
        frames=("lora/",),
        kinds=("exception",),
        certainty="supported",
        when=_not_one_request,
    ),
    Signature(
        "loader-error",
        types=(
            "ValueError",
            "RuntimeError",
            "TypeError",
            "KeyError",
            "AttributeError",
            "AssertionError",
            "NotImplementedError",
            "FileNotFoundError",
            "WeightCacheUnavailableError",
            "CacheConfigMismatchError",
        ),
        when=_in_loader,
        kinds=("exception",),
        phases=(Phase.LOAD,),
        none=("out of memory", "CUDA error", "HIP error"),
        certainty="supported",
        strength=SYMPTOM,
    ),
)
