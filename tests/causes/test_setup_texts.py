"""Texts of the causes around an engine (communication, installation, loading, settings, host), as vLLM 0.4 to 0.33 and
its surroundings print them, each through the whole pipeline: raised in a worker, by the server, by a V0 engine, or serving.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lifesign.report.diagnose import diagnose_paths

Frames = tuple[tuple[str, str], ...]

LOADING: Frames = (
    ("vllm/model_executor/model_loader/base_loader.py", "load_model"),
    ("vllm/model_executor/models/utils.py", "load_weights"),
)
INIT: Frames = (("vllm/v1/worker/gpu_worker.py", "init_device"),)
NCCL: Frames = (
    ("vllm/v1/worker/gpu_worker.py", "init_device"),
    ("vllm/distributed/device_communicators/pynccl_wrapper.py", "NCCL_CHECK"),
)
CONFIG: Frames = (("vllm/entrypoints/cli/serve.py", "cmd"), ("vllm/engine/arg_utils.py", "create_engine_config"))
FORWARD: Frames = (
    ("vllm/v1/worker/gpu_model_runner.py", "execute_model"),
    ("vllm/model_executor/models/qwen3.py", "forward"),
)

# place, frames, exception, model, expected
# fmt: off
ROWS: list[tuple[str, Frames, str, str, str]] = [
    ('worker', (('vllm/v1/worker/gpu_model_runner.py', 'capture_model'), ('vllm/distributed/device_communicators/custom_all_reduce.py', 'register_graph_buffers')), 'RuntimeError: CUDA error: invalid argument\nCUDA kernel errors might be asynchronously reported', '', 'collective-comm/custom-allreduce'),
    ('worker', NCCL, 'RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)', '', 'collective-comm/nccl-unhandled-cuda'),
    ('worker', INIT, 'torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:328, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \nLast error:\nCall to connect to 10.0.0.4<43233> failed : Connection refused', '', 'collective-comm/nccl-unhandled-system'),
    ('worker', INIT, 'torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, internal error - please report this issue to the NCCL developers, NCCL version 2.21.5\nncclInternalError: Internal check failed.\nLast error:\nBootstrap : no socket interface found', '', 'collective-comm/nccl-init'),
    ('worker', (*INIT, ('torch/distributed/rendezvous.py', '_create_c10d_store')), 'torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (10.0.0.4, 29500).', '', 'collective-comm/nccl-init'),
    ('worker', INIT, 'torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.', '', 'collective-comm/nccl-init'),
    ('worker', INIT, 'RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error', '', 'collective-comm/gloo-init'),
    ('worker', INIT, 'RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: eth9', '', 'collective-comm/gloo-init'),
    ('serving', FORWARD, 'RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 20 vs 8', '', 'collective-comm/gloo-dp-desync'),
    ('serving', FORWARD, 'RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.5]:31234', '', 'collective-comm/gloo-peer-lost'),
    ('serving', FORWARD, 'RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete', '', 'collective-comm/gloo-peer-lost'),
    ('worker', INIT, 'RuntimeError: create_config:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:102 HCCL function error: hcclCommInitRootInfoConfig(numRanks, rootInfo, rank, config, &(comm->hcclComm_)), error code is 7\n[ERROR] 2025-06-14-09:20:40 (PID:130, Device:0, RankID:-1) ERR02200 DIST call hccl api failed.\nEJ0001: [PID: 130] Failed to initialize the HCCP process. Reason: Maybe the last training process is running.', '', 'collective-comm/hccl-init'),
    ('serving', FORWARD, 'RuntimeError: The Inner error is reported as above. The process exits for this inner error, and the current working operator name is HcclAllreduce.\n[ERROR] ERR01100 OPS call acl api failed\nEI0002: The wait execution of the Notify register times out. Reason: The Notify register has not received the Notify record from remote rank', '', 'collective-comm/hccl-timeout'),
    ('worker', INIT, 'RuntimeError: oneCCL: ze_fd_manager.cpp:144 init_device_fds: EXCEPTION: opendir failed: could not open device directory', '', 'collective-comm/oneccl'),
    ('worker', INIT, 'RuntimeError: Failed to allocate MNNVL workspace: cuMemCreate returned CUDA_ERROR_NOT_PERMITTED', '', 'collective-comm/mnnvl-workspace'),
    ('worker', INIT, 'RuntimeError: Failed: Assertion error /deepep/csrc/deep_ep.cpp:101 nvshmem init failed', '', 'collective-comm/deepep-nvshmem'),
    ('serving', FORWARD, 'torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2251, remote process exited or there was a network error, NCCL version 2.27.5\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.', '', 'collective-comm/nccl-remote|collective-comm/*'),
    ('worker', INIT, 'torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.21.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000', '', 'distributed-orchestration/dp-device-assignment'),
    ('server', CONFIG, 'RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from http://www.nvidia.com/Download/index.aspx', '', 'env-install/device-type'),
    ('server', CONFIG, 'RuntimeError: The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver', '', 'env-install/driver-too-old'),
    ('server', CONFIG, 'AssertionError: Torch not compiled with CUDA enabled', '', 'env-install/device-type'),
    ('server', CONFIG, 'ImportError: /opt/venv/lib/python3.12/site-packages/vllm/_C.abi3.so: undefined symbol: _ZNK3c106SymInt6sym_neERKS0_', '', 'env-install/torch-abi'),
    ('server', CONFIG, 'ImportError: libcudart.so.12: cannot open shared object file: No such file or directory', '', 'env-install/import-error'),
    ('server', CONFIG, "ModuleNotFoundError: No module named 'vllm._C'", '', 'env-install/import-error'),
    ('serving', FORWARD, "AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'", '', 'env-install/import-error'),
    ('worker', INIT, 'OSError: libnccl.so.2: cannot open shared object file: No such file or directory', '', 'env-install/nccl-lib'),
    ('worker', INIT, 'AttributeError: /usr/lib/x86_64-linux-gnu/libnccl.so.2: undefined symbol: ncclCommWindowRegister', '', 'env-install/nccl-lib'),
    ('server', CONFIG, 'RuntimeError: operator torchvision::nms does not exist', '', 'env-install/torch-abi'),
    ('server', CONFIG, 'importlib.metadata.PackageNotFoundError: No package metadata was found for vllm', '', 'env-install/dist-metadata-missing'),
    ('server', CONFIG, "ImportError: cannot import name 'ResponseTextConfig' from 'openai.types.responses' (/opt/venv/lib/python3.12/site-packages/openai/types/responses/__init__.py)", '', 'env-install/import-error'),
    ('worker', INIT, 'RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver combination', '', 'env-install/driver-mismatch'),
    ('worker', FORWARD, 'RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.', '', 'env-install/driver-too-old|env-install/*'),
    ('server', CONFIG, "ImportError: cannot import name 'Gemma3Config' from 'transformers' (/opt/venv/lib/python3.12/site-packages/transformers/__init__.py)", '', 'env-install/import-error|model-load/transformers-mismatch'),
    ('server', CONFIG, 'RuntimeError: No CUDA GPUs are available', '', 'env-install/device-type'),
    ('server', CONFIG, 'ImportError: Please install bitsandbytes>=0.46.1 via `pip install bitsandbytes>=0.46.1` to use bitsandbytes quantizer.', '', 'env-install/import-error'),
    ('worker', FORWARD, 'RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (9, 1, 0) but found runtime version (8, 9, 2).', '', 'env-install/ld-library-path'),
    ('server', CONFIG, "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.", '', 'model-load/hf-download'),
    ('server', CONFIG, 'requests.exceptions.ConnectionError: (MaxRetryError("HTTPSConnectionPool(host=\'huggingface.co\', port=443): Max retries exceeded with url: /api/models/x/y/tree/main"), \'(Request ID: 12)\')', '', 'model-load/hf-download'),
    ('worker', LOADING, 'huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/models/x/y/tree/main?recursive=true&expand=false', '', 'model-load/hf-download'),
    ('worker', LOADING, 'RuntimeError: Data processing error: CAS service error : Reqwest Error: HTTP status server error (500 Internal Server Error)', '', 'model-load/hf-download'),
    ('server', CONFIG, "OSError: /models/x does not appear to have a file named config.json. Checkout 'https://huggingface.co//models/x/tree/main' for available files.", '', 'model-load/path-missing'),
    ('server', CONFIG, "OSError: x/y is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'\nIf this is a private repository, make sure to pass a token having permission to this repo", '', 'model-load/path-missing|model-load/gated-token'),
    ('server', CONFIG, "ValueError: Invalid repository ID or local directory specified: '/models/x'.\nPlease verify the following requirements:\n1. Provide a valid Hugging Face repository ID.", '', 'model-load/path-missing'),
    ('server', CONFIG, 'pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, The checkpoint you are trying to load has model type `glm5` but Transformers does not recognize this architecture. This could be because of an issue with the checkpoint, or because your version of Transformers is out of date.', '', 'model-load/unsupported-arch'),
    ('server', CONFIG, "ValueError: 'aimv2' is already used by a Transformers config, pick another name.", '', 'model-load/transformers-mismatch'),
    ('server', (*CONFIG, ('transformers/configuration_utils.py', '__getattribute__')), "AttributeError: 'Qwen2Config' object has no attribute 'rope_theta'", '', 'model-load/transformers-mismatch'),
    ('worker', (('vllm/v1/worker/gpu_model_runner.py', 'load_model'), ('transformers/configuration_utils.py', '__getattribute__')), "AttributeError: 'Qwen3VLConfig' object has no attribute 'vocab_size'", '', 'model-load/transformers-mismatch'),
    ('server', CONFIG, 'ValueError: Unrecognized model in /models/x. Should have a `model_type` key in its config.json, or contain one of the following strings in its name: albert, align', '', 'model-load/config-or-code'),
    ('server', CONFIG, 'RuntimeError: Failed to load the model config. If the model is a custom model not yet available in the HuggingFace transformers library, consider setting `trust_remote_code=True` in LLM or using the `--trust-remote-code` flag in the CLI.', '', 'model-load/config-or-code'),
    ('worker', LOADING, "FileNotFoundError: Weight files referenced in index but missing: ['model-00003-of-00004.safetensors']", '', 'model-load/corrupt-or-partial-download'),
    ('worker', LOADING, 'safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge', '', 'model-load/corrupt-or-partial-download'),
    ('worker', LOADING, 'FileNotFoundError: No such file or directory: "/models/x/model-00002-of-00004.safetensors"', '', 'model-load/corrupt-or-partial-download'),
    ('worker', LOADING, "KeyError: 'model.layers.0.self_attn.qkv_proj.bias'", '', 'model-load/weights-mismatch'),
    ('worker', LOADING, "ValueError: There is no module or parameter named 'language_model' in Qwen3ForCausalLM", '', 'model-load/weights-mismatch'),
    ('worker', (*LOADING, ('vllm/model_executor/layers/linear.py', 'weight_loader')), 'AssertionError', '', 'model-load/weights-mismatch'),
    ('worker', LOADING, 'AssertionError: Attempted to load weight (torch.Size([4096])) into parameter (torch.Size([5120]))', '', 'model-load/weights-mismatch'),
    ('worker', CONFIG, 'ValueError: Target and draft model should have the same vocabulary size. Target model vocab_size=151936. Draft model vocab_size=152064.', '', 'model-load/draft-model'),
    ('server', CONFIG, "OSError: Can't load tokenizer for '/models/x'.", '', 'model-load/tokenizer-missing'),
    ('server', CONFIG, "OSError: Can't load image processor for '/models/x'.", '', 'model-load/tokenizer-missing'),
    ('v0', CONFIG, "ValueError: Model architectures ['Qwen3NextForCausalLM'] are not supported for now. Supported architectures: ['LlamaForCausalLM', 'QWenLMHeadModel']", '', 'model-load/unsupported-arch'),
    ('worker', (('vllm/lora/worker_manager.py', '_load_adapter'),), 'RuntimeError: Loading lora sql-adapter failed: No adapter found for /adapters/sql', '', 'model-load/lora-missing'),
    ('server', CONFIG, 'OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/x/y.', '', 'model-load/gated-token'),
    ('worker', LOADING, 'RuntimeError: Cannot find any model weights with `/models/x`', '', 'model-load/weights-file-missing'),
    ('worker', LOADING, 'ValueError: The input size is not aligned with the quantized weight shape. This can be caused by too large tensor parallel size.', '', 'model-quant-incompat/tp-divisibility'),
    ('worker', LOADING, 'ValueError: Weight output_partition_size = 192 is not divisible by weight quantization block_n = 128.', '', 'model-quant-incompat/tp-divisibility'),
    ('worker', (('vllm/_custom_ops.py', 'gptq_marlin_repack'),), 'RuntimeError: size_n = 1184 is not divisible by tile_n_size = 64', '', 'model-quant-incompat/tp-divisibility'),
    ('worker', LOADING, "ValueError: The output_size of gate's and up's weight = 192 is not divisible by weight quantization block_n = 128.", '', 'model-quant-incompat/tp-divisibility'),
    ('worker', LOADING, "KeyError: 'model.layers.3.mlp.experts.w2_weight_scale'", '', 'model-quant-incompat/weight-name-mismatch'),
    ('worker', LOADING, "KeyError: 'layers.0.self_attn.qkv_proj.g_idx'", '', 'model-quant-incompat/weight-name-mismatch'),
    ('worker', LOADING, "ValueError: There is no module or parameter named 'visual.blocks.0.attn.qkv.qweight' in Qwen2_5_VLForConditionalGeneration", '', 'model-quant-incompat/weight-name-mismatch'),
    ('server', CONFIG, 'ValueError: The quantization method fp8 is not supported for the current GPU. Minimum capability: 80. Current capability: 75.', '', 'model-quant-incompat/gpu-capability'),
    ('server', CONFIG, "ValueError: Unknown quantization method: foo. Must be one of ['awq', 'fp8'].", '', 'model-quant-incompat/method-mismatch'),
    ('server', CONFIG, 'pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n  Value error, torch.bfloat16 is not supported for quantization method awq. Supported dtypes: [torch.float16]', '', 'model-quant-incompat/method-mismatch'),
    ('v0', CONFIG, "ValueError: User-specified max_model_len (32768) is greater than the derived max_model_len (max_position_embeddings=8192 or model_max_length=None in model's config.json). This may lead to incorrect model outputs or CUDA errors. To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1", '', 'user-config/max-model-len'),
    ('v0', (('vllm/executor/multiproc_gpu_executor.py', '_check_executor_parameters'),), 'AssertionError: please set tensor_parallel_size (4) to less than max local gpu count (2)', '', 'user-config/tp-gt-gpus'),
    ('server', CONFIG, 'RuntimeError: Tensor parallel size (8) cannot be larger than the number of available GPUs (4).', '', 'user-config/tp-gt-gpus|user-config/*'),
    ('v0', INIT, 'RuntimeError: CUDA error: invalid device ordinal\nCUDA kernel errors might be asynchronously reported at some other API call', '', 'user-config/device-visibility'),
    ('worker', (('vllm/lora/worker_manager.py', '_load_adapter'),), 'ValueError: LoRA rank 32 is greater than max_lora_rank 16.', '', 'user-config/lora-rank'),
    ('server', CONFIG, 'pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n  Value error, --mamba-block-size can only be set with --enable-prefix-caching', '', 'user-config/mamba-block-size'),
    ('server', CONFIG, 'ValueError: Chunked prefill is not supported for pooling models', '', 'user-config/refused-setting'),
    ('server', (*CONFIG, ('vllm/envs.py', 'get_vllm_port')), "ValueError: VLLM_PORT 'tcp://10.96.12.3:8000' appears to be a URI. This may be caused by a Kubernetes service discovery issue,check the warning in: https://docs.vllm.ai/en/stable/serving/env_vars.html", '', 'user-config/bad-env-value'),
    ('server', CONFIG, 'pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig\n  Value error, max_num_batched_tokens (2048) is smaller than max_model_len (32768). This effectively limits the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences.', '', 'user-config/batched-tokens'),
    ('worker', (('vllm/platforms/cuda.py', 'get_attn_backend_cls'),), 'ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=96). Reasons: {FLASH_ATTN: [head_size not supported]}.', '', 'user-config/attention-backend'),
    ('v0', (('vllm/executor/ray_gpu_executor.py', '_init_workers_ray'),), 'ValueError: Ray does not allocate any GPUs on the driver node. Consider adjusting the Ray placement group or running the driver on a GPU node.', '', 'distributed-orchestration/ray-placement'),
    ('worker', (('vllm/executor/ray_distributed_executor.py', '_init_workers_ray'),), "RuntimeError: Every node should have a unique IP address. Got 2 nodes with node ids ['a', 'b'] and 1 unique IP addresses {'10.0.0.1'}. Please check your network configuration.", '', 'distributed-orchestration/ray-placement'),
    ('v0', (), "ValueError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0}] within 1800 seconds. See `ray status` to make sure the cluster has enough resources.", '', 'distributed-orchestration/ray-placement'),
    ('server', CONFIG, 'ValueError: Not enough resources to allocate 8 DP ranks on DP master node 10.0.0.1, possible to fit 4 DP ranks.', '', 'distributed-orchestration/dp-multinode'),
    ('worker', (('vllm/v1/engine/core.py', 'process_input_sockets'),), "zmq.error.ZMQError: Address already in use (addr='tcp://10.0.0.1:13345')", '', 'host-resource/port-in-use'),
    ('worker', (('vllm/usage/usage_lib.py', '_write_to_file'),), "PermissionError: [Errno 13] Permission denied: '/.config/vllm'", '', 'host-resource/permission'),
    ('server', CONFIG, 'OSError: PermissionError at /root/.cache/huggingface/hub when downloading x/y. Check cache directory permissions. Common causes: 1) another user is downloading the same model (please wait); 2) a previous download was canceled and the lock file needs manual removal.', '', 'host-resource/permission'),
    ('worker', INIT, "RuntimeError: can't start new thread", '', 'host-resource/threads'),
    ('worker', (('huggingface_hub/file_download.py', 'http_get'),), 'OSError: [Errno 28] No space left on device', '', 'host-resource/disk-full'),
    ('worker', (('vllm/distributed/device_communicators/shm_broadcast.py', '__init__'), ('/usr/lib/python3.12/multiprocessing/shared_memory.py', '__init__')), 'OSError: [Errno 28] No space left on device', '', 'host-resource/shm-too-small'),
    ('serving', FORWARD, 'RuntimeError: unable to write to file </torch_123_1>: No space left on device (28)', '', 'host-resource/shm-too-small'),
    ('worker', (('vllm/distributed/device_communicators/shm_broadcast.py', '__init__'), ('/usr/lib/python3.12/multiprocessing/shared_memory.py', '__init__')), "FileNotFoundError: [Errno 2] No such file or directory: '/psm_d8ea5a26'", '', 'host-resource/shm-namespace'),
    ('worker', (('vllm/worker/cache_engine.py', '_allocate_kv_cache'),), 'RuntimeError: CUDA error: OS call failed or operation not supported on this OS', '', 'host-resource/pinned-memory|host-oom/pinned-swap'),
    ('worker', INIT, 'RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/device.cc:99] socket: Too many open files', '', 'host-resource/fd-limit'),
    ('worker', LOADING, "OSError: [Errno 24] Too many open files: '/models/x/model-00001-of-00004.safetensors'", '', 'host-resource/fd-limit'),
    ('worker', FORWARD, 'RuntimeError: CUDASymmetricMemoryAllocator::rendezvous: detected allocations from overlapping devices from different ranks.', '', 'distributed-orchestration/dp-device-assignment'),
    ('worker', LOADING, "KeyError: 'layers.0.mlp.experts.w13_bias'", '/models/gpt-oss-120b-w4a16', 'model-quant-incompat/weight-name-mismatch'),
    ('worker', LOADING, "KeyError: 'layers.0.mlp.gate_up_proj.deq_scale'", '', 'model-quant-incompat/weight-name-mismatch'),
    ('worker', LOADING, "KeyError: 'blocks.0.attn.qkv.weight'", '', 'model-load/weights-mismatch'),
    ('server', CONFIG, 'ImportError: dlopen(/opt/venv/lib/python3.11/site-packages/vllm/_C.abi3.so, 0x0002): Symbol not found: __ZN3c1013MessageLoggerC1EPKcii', '', 'env-install/torch-abi'),
    ('v0', FORWARD, "AttributeError: 'PyNcclCommunicator' object has no attribute 'device'", '', 'env-install/nccl-lib'),
    ('serving', FORWARD, 'RuntimeError: create_config:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:148 HCCL function error: hcclCommInitRootInfoConfig(numRanks, &rootInfo, rank, config, &(comm->hcclComm_)), error code is 11\n[ERROR] 2025-09-26-01:47:48 (PID:234357, Device:0, RankID:-1) ERR02200 DIST call hccl api failed.', '', 'collective-comm/hccl-init'),
    ('worker', (('vllm/distributed/device_communicators/flashinfer_all_reduce.py', 'init_workspace'), ('flashinfer/comm/mnnvl.py', '_exchange')), 'RuntimeError: pidfd_getfd(pidfd=112, fd=98) failed with errno 1: Operation not permitted. Permission denied. If running in a container, try adding --cap-add=SYS_PTRACE', '', 'collective-comm/mnnvl-workspace'),
    ('server', (*CONFIG, ('vllm/tokenizers/registry.py', 'get_tokenizer'), ('/opt/venv/lib/python3.12/site-packages/transformers/tokenization_utils_base.py', '_set_model_specific_special_tokens')), "AttributeError: 'list' object has no attribute 'keys'", '', 'model-load/transformers-mismatch'),
    ('v0', (('vllm/config.py', '__init__'), ('/opt/venv/lib/python3.12/site-packages/transformers/models/auto/configuration_auto.py', '__getitem__')), "KeyError: 'mixtral'", '', 'model-load/transformers-mismatch'),
    ('server', CONFIG, "ImportError: cannot import name 'ProcessorMixin' from partially initialized module 'transformers' (most likely due to a circular import)", '', 'model-load/transformers-mismatch|env-install/import-error'),
    ('worker', (('vllm/v1/worker/gpu_worker.py', 'load_model'), ('/opt/venv/lib/python3.12/site-packages/transformers/image_processing_base.py', 'from_dict')), "TypeError: Qwen2VLImageProcessor.__init__() got an unexpected keyword argument 'size'", '', 'model-load/transformers-mismatch'),
    ('worker', (('vllm/compilation/backends.py', '__call__'), ('/usr/lib/python3.12/os.py', 'makedirs')), "torch._inductor.exc.InductorError: PermissionError: [Errno 13] Permission denied: '/.triton'", '', 'host-resource/permission'),
    ('worker', (('vllm/executor/ray_utils.py', '_verify_bundles'),), "ValueError: Current node has no GPU available. current_node_resource={'node:10.0.0.1': 0.999}. vLLM engine cannot start without GPU. Make sure you have at least 1 GPU available in a node current_node_id='abc' current_ip='10.0.0.1'.", '', 'distributed-orchestration/ray-placement'),
    ('worker', (('vllm/model_executor/model_loader/weight_utils.py', 'download_weights_from_hf'), ('huggingface_hub/utils/_http.py', 'send')), 'OSError: [Errno 101] Network is unreachable', '', 'model-load/hf-download'),
    ('server', CONFIG, 'OSError: There was a specific connection error when trying to load x/y:\n403 Client Error. (Request ID: Root=1-2)\n\nAccess to model x/y is restricted and you are not in the authorized list. Visit https://huggingface.co/x/y to ask for access.', '', 'model-load/gated-token'),
    ('server', (*CONFIG, ('modelscope/hub/snapshot_download.py', 'snapshot_download')), 'modelscope.hub.errors.NotExistError: The file path in the repository is not found. Failed to download x/y', '', 'model-load/hf-download'),
]
# fmt: on


def traceback(prefix: str, header: str, frames: Frames, exception: str) -> list[str]:
    """A traceback as a logger prints it: the prefix on every line."""
    lines = [prefix + header] if header else []
    lines.append(prefix + "Traceback (most recent call last):")
    for number, (file, function) in enumerate(frames):
        folder = "" if file.startswith(("/", "<")) else "/usr/local/lib/python3.12/dist-packages/"
        lines.append(f'{prefix}  File "{folder}{file}", line {100 + number}, in {function}')
        lines.append(f"{prefix}    run()")
    lines.extend(prefix + line for line in exception.split("\n"))
    return lines


def banner(model: str) -> list[str]:
    return [
        f"(APIServer pid=1) INFO 06-14 09:20:11 [utils.py:261] non-default args: {{'model_tag': '{model}', 'model': '{model}', 'tensor_parallel_size': 2}}",
        f"(EngineCore pid=88) INFO 06-14 09:20:15 [core.py:105] Initializing a V1 LLM engine (v0.19.1) with config: model='{model}', speculative_config=None, tokenizer='{model}', tensor_parallel_size=2, pipeline_parallel_size=1, quantization=None, enforce_eager=False",
    ]


def log(kind: str, frames: Frames, exception: str, model: str) -> list[str]:
    """The log of an engine that dies of `exception` at one of four places."""
    model = model or "/models/qwen3-32b"
    failed = traceback(
        "(APIServer pid=1) ",
        "",
        (("vllm/v1/engine/utils.py", "wait_for_engine_startup"),),
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    )
    if kind == "server":
        return banner(model)[:1] + traceback("(APIServer pid=1) ", "", frames, exception)
    if kind == "v0":
        first = f"INFO 10-16 11:20:11 llm_engine.py:237] Initializing an LLM engine (v0.6.3) with config: model='{model}', tokenizer='{model}', tensor_parallel_size=2"
        again = traceback("", "Process SpawnProcess-1:", frames, exception)
        return [first, *traceback("ERROR 10-16 11:20:50 engine.py:366] ", "", frames, exception), *again]
    worker = "(Worker_TP0 pid=130) ERROR 06-14 09:33:00 [multiproc_executor.py:870] "
    if kind == "worker":
        return banner(model) + traceback(worker, "WorkerProc failed to start.", frames, exception) + failed
    return [
        *banner(model),
        "(APIServer pid=1) INFO:     Application startup complete.",
        '(APIServer pid=1) INFO:     10.0.3.9:51880 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        *traceback(worker, "WorkerProc hit an exception.", frames, exception),
        *traceback(
            "(APIServer pid=1) ERROR 06-14 09:33:02 [async_llm.py:704] ",
            "AsyncLLM output_handler failed.",
            (("vllm/v1/engine/async_llm.py", "output_handler"),),
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
        ),
    ]


@pytest.mark.parametrize(
    ("kind", "frames", "exception", "model", "expected"), ROWS, ids=[f"{row[0]}: {row[2][:50]}" for row in ROWS]
)
def test_text(kind: str, frames: Frames, exception: str, model: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("\n".join(log(kind, frames, exception, model)) + "\n", encoding="utf-8")
    verdict = diagnose_paths([str(path)]).verdict
    assert f"{verdict.cause}/{verdict.subtype}" in expected.split("|")


NOTICES = (
    "node-a:130:130 [0] ras/client_support.cc:160 NCCL WARN Call to bind failed: Address already in use",
    "node-a:130:130 [0] misc/ibvwrap.cc:94 NCCL WARN Failed to open libibverbs.so[.1]",
    "WARNING 06-14 09:20:08 [_custom_ops.py:20] Failed to import from vllm._C with ModuleNotFoundError(\"No module named 'vllm._C'\")",
    "INFO 06-14 09:20:08 [__init__.py:220] No platform detected, vLLM is running on UnspecifiedPlatform",
    "ERROR 06-14 09:20:08 pynccl.py:53] Failed to load NCCL library from libnccl.so.2 .It is expected if you are not running on NVIDIA/AMD GPUs.",
    "(APIServer pid=1) ERROR 06-14 09:20:12 [repo_utils.py:47] Error retrieving file list: An error happened while trying to locate the files on the Hub, retrying 1 of 2",
    "(APIServer pid=1) WARNING 06-14 09:20:11 [system_utils.py:255] Found ulimit of 1024 and failed to automatically increase. This can cause fd limit errors like `OSError: [Errno 24] Too many open files`.",
    "[W614 09:20:12.901330118 socket.cpp:767] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99 - Cannot assign requested address).",
)


@pytest.mark.parametrize("notice", NOTICES)
def test_a_notice_never_outranks_the_error(notice: str, tmp_path: Path) -> None:
    """Harmless lines before an out-of-memory error stay harmless."""
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.10 GiB is free."
    lines = log("serving", FORWARD, oom, "")
    path = tmp_path / "vllm.log"
    path.write_text("\n".join([*lines[:2], notice, *lines[2:]]) + "\n", encoding="utf-8")
    assert diagnose_paths([str(path)]).verdict.cause == "device-oom"
