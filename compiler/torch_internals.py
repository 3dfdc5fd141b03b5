"""Everything private that is taken from PyTorch, in one place, each with what it is for."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch

# Fake tensors: tensors with metadata and no data, on which the oracle runs an operation once.
# The two exceptions say that an output's shape, or a Python value, depends on a tensor's data.
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)

# Sees every ATen operation, below autograd and autocast.
from torch.utils._python_dispatch import TorchDispatchMode

# A module of flags, such as torch.backends.opt_einsum, that stands before the module which holds them, its `m`.
from torch.backends import PropModule

# Switches off every active TorchDispatchMode for a block, a user's own included.
from torch.utils._python_dispatch import _disable_current_modes as no_user_modes

# Switches off every TorchFunctionMode and __torch_function__ override for a block.
from torch._C import DisableTorchFunction

# A subclass's own __torch_function__ that does nothing, so that only modes see its calls.
from torch._C import _disabled_torch_function_impl as no_torch_function

# Runs kernels on plain tensors while modes and subclasses of tensors are being asked.
from torch.utils._mode_utils import no_dispatch

# Checks type, dispatch keys, dtype, device, requires_grad, sizes and strides of many tensors in one C++ call.
from torch._C._dynamo.guards import TensorGuards

# What Dynamo does with the frames of a code object, and with those inside.
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

# The version of a dictionary: a number that changes with every write to it.
from torch._C._dynamo.guards import dict_version

# Compares the classes and the dictionaries' versions of many objects in one C++ call.
from torch._C._dynamo.guards import GuardManager, RootGuardManager
from torch._dynamo.guards import GuardManagerType

# Numbers of active function modes: a program traced under one runs under one.
from torch._C import _len_torch_function_stack as function_mode_depth

# Makes tensors on CUDA that have no data possible to differentiate where there is no GPU.
from torch._C import _ensureCUDADeviceGuardSet as ensure_cuda_guard

# Whether deterministic algorithms are asked for: the C function under torch.get_deterministic_debug_mode.
from torch._C import _get_deterministic_algorithms as deterministic_algorithms

# Whether there is any autocast, and a block without, whatever the device.
from torch._C import _DisableAutocast as no_autocast
from torch._C import _is_any_autocast_enabled as any_autocast_enabled

# The functions that take `device=` from torch.set_default_device.
from torch.utils._device import _device_constructors as device_constructors

# Depth of the functorch stack (vmap, grad, jvp): above zero the stand-ins are wrapped by functorch.
from torch._C._functorch import is_functorch_wrapped_tensor as is_functorch_wrapped
from torch._C._functorch import peek_interpreter_stack as functorch_interpreter

# The switch that Python reads and writes through torch.no_grad, seen by function modes.
from torch._C import _set_grad_enabled as set_grad_enabled

# An ATen operation, as logs hold it, and its overloads together.
from torch._ops import OpOverload, OpOverloadPacket

# Functional tensors: a write to one makes a new value, which reaches its base and is seen by its other views. On, off;
# from a tensor and to its present value; the writes to views brought to a base; another value put in its place.
from torch import (
    _disable_functionalization as disable_functionalization,  # pyright: ignore[reportPrivateImportUsage]
    _enable_functionalization as enable_functionalization,  # pyright: ignore[reportPrivateImportUsage]
    _from_functional_tensor as from_functional,  # pyright: ignore[reportPrivateImportUsage]
    _functionalize_commit_update as functional_commit,  # pyright: ignore[reportPrivateImportUsage]
    _functionalize_replace as functional_replace,  # pyright: ignore[reportPrivateImportUsage]
    _sync as functional_sync,  # pyright: ignore[reportPrivateImportUsage]
    _to_functional_tensor as to_functional,  # pyright: ignore[reportPrivateImportUsage]
)

# Which backward runs, and whether it is for a node: how gates know that gradients are asked for by tensor.
from torch._C import _current_graph_task_id as current_graph_task_id
from torch._C import _will_engine_execute_node as will_engine_execute_node

# The built-in functions of neural networks that torch.nn.functional wraps.
from torch._C import _nn as nn_functions  # pyright: ignore[reportAttributeAccessIssue]

# A view that reads as the negative of a tensor.
from torch import _neg_view as neg_view  # pyright: ignore[reportPrivateImportUsage]

# What `torch.nn.utils.rnn.pad_packed_sequence` calls: its output's shape depends on the lengths that it is given.
from torch import (
    _pad_packed_sequence as pad_packed_sequence,  # pyright: ignore[reportPrivateImportUsage]
)

# Whose backward runs, and which number autograd gives to the next node of its graph.
from torch._C import _current_autograd_node as current_autograd_node
from torch._C._autograd import _get_sequence_nr as next_node_number

# While true, tensors that autograd saves are not handed to a user's saved-tensor hooks.
from torch._C._autograd import _saved_tensors_hooks_set_tracing as set_saved_tensor_hooks_ignored

# The dispatch keys in force, for what functorch calls below autograd.
from torch._C import DispatchKey, DispatchKeySet
from torch._C import _AutoDispatchBelowAutograd as below_autograd
from torch._C import _dispatch_tls_is_dispatch_key_excluded as is_key_excluded
from torch._C import _dispatch_tls_local_exclude_set as excluded_keys
from torch._C import _dispatch_tls_local_include_set as included_keys
from torch._C import _ExcludeDispatchKeyGuard as exclude_keys
from torch._C import _ForceDispatchKeyGuard as force_keys

# Whether torch.fx follows what the calls do.
from torch.fx._symbolic_trace import is_fx_symbolic_tracing as fx_is_tracing

# What torch.autograd.Function adds to this class is support for functorch, at a microsecond a call.
from torch.autograd.function import _SingleLevelFunction as SingleLevelFunction

# Settings that kernels depend on, where the public functions are slower or only set.
from torch._C import _get_cudnn_enabled as get_cudnn_enabled
from torch._C import _get_cudnn_sdp_enabled as get_cudnn_sdp_enabled
from torch._C import _get_flash_sdp_enabled as get_flash_sdp_enabled
from torch._C import _get_float32_matmul_precision as get_float32_matmul_precision
from torch._C import _get_fp32_precision_getter as get_float32_precision
from torch._C import _get_math_sdp_enabled as get_math_sdp_enabled
from torch._C import _get_mem_efficient_sdp_enabled as get_mem_efficient_sdp_enabled
from torch._C import _get_mkldnn_enabled as get_mkldnn_enabled
from torch._C import _set_cudnn_enabled as set_cudnn_enabled
from torch._C import _set_mkldnn_enabled as set_mkldnn_enabled

# The function mode of torch.set_default_device and `with torch.device(...)`, and the stack that it stands in.
from torch.utils._device import DeviceContext
from torch.overrides import _get_current_function_mode_stack as function_mode_stack

# Numbers of active dispatch modes: under somebody else's, a program is being traced or counted by them.
from torch._C import _len_torch_dispatch_stack as dispatch_mode_depth

# Whether torch.jit.trace is recording in this thread.
from torch._C import _is_tracing as torchscript_is_tracing

# A graph of TorchScript as a function that has not run yet, and the block in which it is run as it stands.
from torch._C import _create_function_from_graph as new_script_function
from torch.jit import optimized_execution  # pyright: ignore[reportPrivateImportUsage]

# torch.cond and torch.while_loop as function modes see them, and the module whose function hands them to torch.compile.
from torch._higher_order_ops import utils as higher_order
from torch._higher_order_ops.cond import cond_op as cond_operator
from torch._higher_order_ops.while_loop import while_loop_op as while_loop_operator
from torch._ops import HigherOrderOperator

# What torch.autograd.Function.apply comes down to, in C++.
from torch._C import _FunctionBase as FunctionBase

# False inside of DisableTorchFunction: the oracle or a real environment is at work, not the user's program.
from torch._C import _is_torch_function_enabled as torch_function_enabled

# Puts back the count of a tensor's writes that was raised to see which others count them.
from torch._C._autograd import _unsafe_set_version_counter as set_version

# PyTorch's short names of dtypes: f32, bf16, i64, b8.
from torch.utils._dtype_abbrs import dtype_abbrs

# Symbolic sizes: the environment that makes them and collects guards, how a tensor's sizes are made symbolic, and where
# a size comes from.
from torch._dynamo.source import LocalSource, TensorProperty
from torch._guards import SLoc
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

# Imported by PyTorch at the first views of fakes; an import hook that runs while a program is watched would pass for its code.
from torch._subclasses import schema_check_mode

# Asks PyTorch's own Python decompositions for the operations whose C++ takes no symbolic numbers.
from torch._dispatch.python import enable_python_dispatcher

# In the block views are taken that autograd takes for tensors of their own.
from torch._C import _AutoDispatchBelowADInplaceOrView as unseen_views

# Sympy expressions of sizes as Python.
from torch.utils._sympy.printers import PythonPrinter

# A function of fakes as a graph of ATen operations.
from torch.fx.experimental.proxy_tensor import make_fx

# PyTorch's decompositions of its operations into simpler ones.
from torch._decomp import decomposition_table

# The function that hands torch.cond and the like, called by themselves, to torch.compile; in older versions torch.compile.
hop_compiler: tuple[Any, str] = (
    (higher_order, "_hop_compile_and_call")
    if hasattr(higher_order, "_hop_compile_and_call")
    else (torch, "compile")
)

# What fake tensors log before they raise, an error that the oracle catches, and what symbolic sizes log of each step.
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)
_LOGGERS = "torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes", "torch.__trace"
for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(lambda _record: not _quiet.get())


# PyTorch's flags: the functions in C by which Python, torch.backends above all, reads and changes them.
_SETTINGS = """
    cudnn_enabled cudnn_benchmark cudnn_deterministic cudnn_allow_tf32 cublas_allow_tf32
    cublas_allow_fp16_accumulation miopen_immediate sdp_priority_order
    cublas_allow_bf16_reduced_precision_reduction
    cublas_allow_fp16_reduced_precision_reduction
    cpu_allow_fp16_reduced_precision_reduction math_sdp_allow_fp16_bf16_reduction
    nnpack_enabled blas_preferred_backend linalg_preferred_backend float32_matmul_precision
    qengine mkldnn_enabled mkldnn_deterministic onednn_allow_tf32 warnAlways
    fa3_sdp_enabled flash_sdp_enabled mem_efficient_sdp_enabled math_sdp_enabled
    cudnn_sdp_enabled overrideable_sdp_enabled deterministic_fill_uninitialized_memory
""".split()

# What a fp32_precision of torch.backends is asked for: backends and operations.
FLOAT32_PRECISIONS = (
    ("generic", "all"),
    *((backend, of) for backend in ("cuda", "mkldnn") for of in ("all", "matmul", "conv", "rnn")),
)


def setting_readers() -> dict[Callable[[], Any], Callable[..., Any] | None]:
    """The functions in C that tell one of PyTorch's flags, those that this release has, each with the one that sets it."""
    found = {
        getattr(torch._C, f"_get_{name}"): getattr(torch._C, f"_set_{name}", None)
        for name in _SETTINGS
        if hasattr(torch._C, f"_get_{name}")
    }
    found[torch.get_num_threads] = torch.set_num_threads
    found[torch.is_anomaly_enabled] = torch.set_anomaly_enabled
    found[torch.is_anomaly_check_nan_enabled] = None
    found[torch.is_autocast_cache_enabled] = torch.set_autocast_cache_enabled
    return found


def python_setting_readers() -> list[Any]:
    """The functions in Python that tell a flag which Python alone has."""
    found = [torch.backends.mha.get_fastpath_enabled]
    return [*found, torch.distributed.is_initialized] if torch.distributed.is_available() else found


def left_to_python(function: Any) -> Any:
    """The function, which Dynamo runs as it is, whatever it calls, where it compiles the code around."""
    function._torchdynamo_disable = True
    skip = _FrameAction.SKIP
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(skip, skip))
    return function


def inductor() -> Any:
    """The parts of Inductor that compile a graph; importing them takes a second, so they wait until they are needed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of PyTorch's own modules
        from torch._guards import TracingContext, tracing  # what a compilation knows of its fakes
        from torch._inductor import codecache, compile_fx, config, cpu_vec_isa
        from torch._inductor.codegen.cpp import CppVecOverrides
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.decomposition import select_decomp_table
        from torch._inductor.runtime.cache_dir_utils import cache_dir

    return SimpleNamespace(
        TracingContext=TracingContext,
        cache_dir=cache_dir,
        codecache=codecache,
        compile=compile_fx.compile_fx_inner,
        config=config,
        cpp_compiler=get_cpp_compiler,
        decompositions=select_decomp_table,
        load=lambda key, path: codecache.PyCodeCache.load_by_key_path(key, path).call,
        record_strides=compile_fx.record_original_output_strides,
        rounds_half_types="use_compute_types" in signature(CppVecOverrides.to_dtype).parameters,
        tracing=tracing,
        vector_instructions=cpu_vec_isa,
    )


GUARD_REASONS: tuple[Any, ...] = (
    ([], None) if "arg2" in str(RootGuardManager.add_dict_version_guard.__doc__) else ([],)
)
"""What Dynamo's guards take for people who read a failure: its words and, from some version on, the user's line."""


@contextmanager
def quiet_fakes() -> Generator[None]:
    """Fake tensors and symbolic sizes log nothing in the block, in this thread."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


__all__ = [
    "FLOAT32_PRECISIONS",
    "GUARD_REASONS",
    "DataDependentOutputException",
    "DeviceContext",
    "DimDynamic",
    "DisableTorchFunction",
    "DispatchKey",
    "DispatchKeySet",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "FunctionBase",
    "GuardManager",
    "GuardManagerType",
    "HigherOrderOperator",
    "LocalSource",
    "OpOverload",
    "OpOverloadPacket",
    "PropModule",
    "PythonPrinter",
    "RootGuardManager",
    "SLoc",
    "ShapeEnv",
    "SingleLevelFunction",
    "StatelessSymbolicContext",
    "TensorGuards",
    "TensorProperty",
    "TorchDispatchMode",
    "any_autocast_enabled",
    "below_autograd",
    "cond_operator",
    "current_autograd_node",
    "current_graph_task_id",
    "decomposition_table",
    "deterministic_algorithms",
    "device_constructors",
    "dict_version",
    "disable_functionalization",
    "dispatch_mode_depth",
    "dtype_abbrs",
    "enable_functionalization",
    "enable_python_dispatcher",
    "ensure_cuda_guard",
    "exclude_keys",
    "excluded_keys",
    "force_keys",
    "from_functional",
    "function_mode_depth",
    "function_mode_stack",
    "functional_commit",
    "functional_replace",
    "functional_sync",
    "functorch_interpreter",
    "fx_is_tracing",
    "get_cudnn_enabled",
    "get_cudnn_sdp_enabled",
    "get_flash_sdp_enabled",
    "get_float32_matmul_precision",
    "get_float32_precision",
    "get_math_sdp_enabled",
    "get_mem_efficient_sdp_enabled",
    "get_mkldnn_enabled",
    "higher_order",
    "hop_compiler",
    "included_keys",
    "inductor",
    "is_functorch_wrapped",
    "is_key_excluded",
    "left_to_python",
    "make_fx",
    "neg_view",
    "new_script_function",
    "next_node_number",
    "nn_functions",
    "no_autocast",
    "no_dispatch",
    "no_torch_function",
    "no_user_modes",
    "optimized_execution",
    "pad_packed_sequence",
    "python_setting_readers",
    "quiet_fakes",
    "schema_check_mode",
    "set_cudnn_enabled",
    "set_grad_enabled",
    "set_mkldnn_enabled",
    "set_saved_tensor_hooks_ignored",
    "set_version",
    "setting_readers",
    "to_functional",
    "torch_function_enabled",
    "torchscript_is_tracing",
    "unseen_views",
    "while_loop_operator",
    "will_engine_execute_node",
]
