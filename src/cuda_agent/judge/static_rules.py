"""Tables of the static scan of Python: dotted names and what using them means."""

from __future__ import annotations

import re

from cuda_agent.judge.finding import Severity
from cuda_agent.result import ViolationKind

Rule = tuple[re.Pattern[str], ViolationKind, Severity, str]

_BREAK, _NOTE = Severity.VIOLATION, Severity.NOTE


def _rule(pattern: str, kind: ViolationKind, severity: Severity, why: str) -> Rule:
    return re.compile(rf"(?:{pattern})(?:\.|$)"), kind, severity, why


NAME_RULES: tuple[Rule, ...] = (
    _rule(
        r"torch\.(_dynamo|_inductor|compile|jit|export|onnx|_export|_functorch\.aot_autograd)",
        ViolationKind.FORBIDDEN_IMPORT,
        _BREAK,
        "a compiler of PyTorch's own",
    ),
    _rule(
        r"torch\.utils\.cpp_extension|torch\.multiprocessing|torch\.distributed|torch\.hub",
        ViolationKind.FORBIDDEN_IMPORT,
        _BREAK,
        "builds, loads or starts things of its own",
    ),
    _rule(
        r"subprocess|multiprocessing|ctypes|_ctypes|cffi|socket|socketserver|http|urllib|urllib3|requests|ftplib|ssl"
        r"|asyncio|_posixsubprocess|pty|unittest\.mock|pdb|code|pip|setuptools|distutils",
        ViolationKind.FORBIDDEN_IMPORT,
        _BREAK,
        "not for kernels",
    ),
    _rule(
        r"triton|flash_attn|flash_attn_interface|xformers|vllm|sglang|sgl_kernel|flashinfer|apex"
        r"|transformer_engine|cutlass|cutlass_library|cupy|numba|jax|jaxlib|tensorflow|tensorrt|torch_tensorrt"
        r"|onnxruntime|tilelang|deepspeed|bitsandbytes|liger_kernel|kernels|pycuda|cuda|nvmath|helion|torchao"
        r"|fla|causal_conv1d|mamba_ssm|intel_extension_for_pytorch|openvino|tvm|taichi|warp|scipy|numexpr|mkl",
        ViolationKind.FORBIDDEN_IMPORT,
        _BREAK,
        "a library other than those allowed",
    ),
    _rule(r"model", ViolationKind.FORBIDDEN_IMPORT, _BREAK, "the reference"),
    _rule(
        r"os\.(system|popen|fork\w*|exec\w+|spawn\w+|posix_spawnp?|kill|killpg|_exit|abort)",
        ViolationKind.PROCESS_ESCAPE,
        _BREAK,
        "process control",
    ),
    _rule(
        r"sys\.(_getframe|_getframemodulename|_current_frames|_current_exceptions)"
        r"|inspect\.(currentframe|stack|trace|getouterframes|getinnerframes)"
        r"|traceback\.(walk_stack|extract_stack|format_stack|print_stack)",
        ViolationKind.TAMPERING,
        _BREAK,
        "walks frames",
    ),
    _rule(
        r"gc\.(get_objects|get_referrers|get_referents)",
        ViolationKind.TAMPERING,
        _BREAK,
        "lists objects of the garbage collector",
    ),
    _rule(
        r"(sys|threading)\.(settrace|setprofile\w*|monitoring|addaudithook)",
        ViolationKind.TAMPERING,
        _BREAK,
        "hooks into the interpreter",
    ),
    _rule(
        r"torch\.utils\._python_dispatch|torch\.overrides\.DisableTorchFunction\w*"
        r"|torch\._C\.(_?[Dd]isable\w*|_ExcludeDispatchKeyGuard|_pop_torch_dispatch_stack|_set_dispatch_mode"
        r"|_unset_dispatch_mode|_len_torch_dispatch_stack|_AutoDispatchBelow\w*|_dispatch_tls_\w+)",
        ViolationKind.TAMPERING,
        _BREAK,
        "reaches for the dispatcher's modes",
    ),
    _rule(
        r"threading\.(Thread|Timer)|_thread\.start_new_thread|concurrent\.futures",
        ViolationKind.LATE_WORK,
        _BREAK,
        "starts Python threads, which the guard cannot see",
    ),
    _rule(r"torch\.library|torch\.ops\.(?!aten)\w+", ViolationKind.TORCH_COMPUTE, _NOTE, "custom operators"),
    _rule(r"atexit", ViolationKind.LATE_WORK, _NOTE, "runs at exit"),
    _rule(
        r"torch\.(set_float32_matmul_precision|set_flush_denormal|set_default_dtype|use_deterministic_algorithms)"
        r"|torch\.backends",
        ViolationKind.PRECISION,
        _NOTE,
        "a global setting of PyTorch",
    ),
    _rule(
        r"torch\.set_num(_interop)?_threads",
        ViolationKind.TIME_MANIPULATION,
        _NOTE,
        "changes the thread count",
    ),
    _rule(r"torch\.cuda\.CUDAGraph|torch\.cuda\.graph", ViolationKind.HIDDEN_STATE, _NOTE, "a CUDA graph"),
    _rule(
        r"torch\.(load|utils\.dlpack|from_dlpack)|pickle", ViolationKind.HIDDEN_STATE, _NOTE, "foreign data"
    ),
    _rule(r"numpy", ViolationKind.FORBIDDEN_LIBRARY, _NOTE, "not for work on data"),
    _rule(r"builtins", ViolationKind.TAMPERING, _NOTE, "the interpreter's own names"),
)
"""First match counts, on names resolved through imports and simple aliases."""

HARMLESS = re.compile(
    r"torch\.jit\.(is_tracing|is_scripting|annotate|ignore|unused|export|Final|interface)$"
    r"|torch\.distributed\.(is_available|is_initialized)$"
)
"""Questions and marks found in honest modules, under names that are refused otherwise."""

BREAKING_ATTRIBUTES: dict[str, tuple[ViolationKind, str]] = {
    **dict.fromkeys(
        ["f_back", "f_locals", "f_globals", "f_builtins", "gi_frame", "cr_frame", "ag_frame", "tb_frame"],
        (ViolationKind.TAMPERING, "walks frames"),
    ),
    "_disable_current_modes": (ViolationKind.TAMPERING, "switches the guard off"),
    "_make_subclass": (ViolationKind.TAMPERING, "makes a tensor subclass"),
    "_make_wrapper_subclass": (ViolationKind.TAMPERING, "makes a tensor subclass"),
}
"""Attribute names that say enough on any object."""
