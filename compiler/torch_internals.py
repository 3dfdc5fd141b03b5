"""Everything private that is taken from PyTorch, in one place, each with what it is for."""

from __future__ import annotations

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

# Makes the dispatcher consult Python registrations, which gives composite operators their schema-true bodies.
from torch._dispatch.python import enable_python_dispatcher

# Switches off every active TorchDispatchMode for a block, a user's own included.
from torch.utils._python_dispatch import _disable_current_modes as no_user_modes

# Switches off every TorchFunctionMode and __torch_function__ override for a block.
from torch._C import DisableTorchFunction

# A subclass's own __torch_function__ that does nothing, so that only modes see its calls.
from torch._C import _disabled_torch_function_impl as no_torch_function

# Checks type, dispatch keys, dtype, device, requires_grad, sizes and strides of many tensors in one C++ call.
from torch._C._dynamo.guards import TensorGuards

# Numbers of active function modes: a program traced under one runs under one.
from torch._C import _len_torch_function_stack as function_mode_depth

# True under any autocast, whatever the device.
from torch._C import _is_any_autocast_enabled as any_autocast_enabled

# The functions that take `device=` from torch.set_default_device.
from torch.utils._device import _device_constructors as device_constructors

# Depth of the functorch stack (vmap, grad, jvp): above zero the stand-ins are wrapped by functorch.
from torch._C._functorch import peek_interpreter_stack as functorch_interpreter

# The switch that Python reads and writes through torch.no_grad, seen by function modes.
from torch._C import _set_grad_enabled as set_grad_enabled

# PyTorch's short names of dtypes: f32, bf16, i64, b8.
from torch.utils._dtype_abbrs import dtype_abbrs

__all__ = [
    "DataDependentOutputException",
    "DisableTorchFunction",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "TensorGuards",
    "TorchDispatchMode",
    "any_autocast_enabled",
    "device_constructors",
    "dtype_abbrs",
    "enable_python_dispatcher",
    "function_mode_depth",
    "functorch_interpreter",
    "no_torch_function",
    "no_user_modes",
    "set_grad_enabled",
]
