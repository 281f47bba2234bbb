"""The one place that imports `numba.cuda` (simulator.py aside): kernels, array views, streams and the warp and block primitives.

Kernels are compiled on a GPU and run in Numba's CUDA simulator when `NUMBA_ENABLE_CUDASIM=1` was set before the first
import. The simulator has no shuffles, ballots or inline PTX, so the primitives below exist twice, under one name; a
kernel written on them is the same source in both worlds. Nothing here imports torch: anything with the CUDA array
interface (a torch tensor, a CuPy array) becomes a kernel argument through `view`.
"""

import hashlib

import numba
import numpy as np
from numba import config as numba_config
from numba import cuda, float32, int32, int64, njit, uint32

from numba_rl.kernel_cache import rebound

SIMULATED = bool(numba_config.ENABLE_CUDASIM)
FULL_MASK = 0xFFFFFFFF

if SIMULATED:
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    from numba_rl import simulator

    simulator.install()
    intrinsic = None  # there is no compiler to give instructions to
else:
    from numba.cuda.core import config as cuda_config
    from numba.cuda.extending import intrinsic

    # Small grids are meant: a block per episode, one block for a scan.
    cuda_config.CUDA_LOW_OCCUPANCY_WARNINGS = 0

_SIMULATOR_LACKS = ("lineinfo", "launch_bounds", "max_registers", "lto", "cache")


def jit(function=None, **options):
    """`cuda.jit` for kernels; options that the simulator does not know are dropped there."""
    if SIMULATED:
        options = {name: value for name, value in options.items() if name not in _SIMULATOR_LACKS}
    decorate = cuda.jit(**options) if options else cuda.jit
    return decorate if function is None else decorate(function)


def device(function=None, *, inline=True):
    """`cuda.jit(device=True)`, inlined at the call unless told otherwise."""
    options = {"device": True}
    if not SIMULATED and inline:
        options["forceinline"] = True
    decorate = cuda.jit(**options)
    return decorate if function is None else decorate(function)


class Both:
    """One plain function compiled twice: `.cpu` for @njit callers, `.device` for kernels (or the simulator).

    The functions with array arguments that it calls must be `Both` as well and are named in `uses`; in each version their
    names mean their own version. A kernel of the simulator cannot hand arrays to @njit functions, hence the two.
    """

    def __init__(self, function, uses=()):
        self.function = function
        self.uses = tuple(uses)
        self.cpu = njit(error_model="numpy")(self.bound("cpu"))
        self.device = device(self.bound("device"))

    def bound(self, version):
        """The plain function with the names of `uses` bound to their `version`."""
        names = {used.function.__name__: getattr(used, version) for used in self.uses}
        return rebound(self.function, names)

    def __call__(self, *arguments):
        return self.function(*arguments)


def both(*uses):
    """Decorator for `Both`: `@both(helper_a, helper_b)`."""
    return lambda function: Both(function, uses)


def available() -> bool:
    """Whether kernels can be launched here: a GPU that Numba can use, or the simulator."""
    if SIMULATED:
        return True
    try:
        return bool(cuda.is_available())
    except Exception:  # a broken driver raises many kinds of error; every one of them means "no GPU"
        return False


def compile_only(wanted) -> None:
    """From now on no kernel of this process is launched; those that can be kept on disk are compiled into the cache instead.

    wanted: name -> whether this process is to compile the kernel. A name stands for a kernel, its specialisation and the types of a
    launch's arguments, and is the same in every process. What a launch would have written stays as it is.
    """
    from numba.cuda.dispatcher import CUDADispatcher

    def call(dispatcher, arguments, _launch):
        types = tuple(dispatcher.typeof_pyval(argument) for argument in arguments)
        file = getattr(dispatcher._cache, "_cache_file", None)
        if file is None or types in dispatcher.overloads:
            return
        key = dispatcher._cache._index_key(types, dispatcher.targetctx.codegen())
        if wanted(hashlib.sha256(f"{file._index_name} {key}".encode()).hexdigest()[:32]):
            dispatcher.compile(types)

    CUDADispatcher.call = call


def view(array, dtype=None):
    """A kernel argument that shares memory with `array`: nothing is copied and no stream is synchronised.

    array: torch tensor (detached here), CuPy or Numba device array, C-contiguous, on the GPU; in the simulator a CPU
    tensor or NumPy array. dtype: the element type that the kernel expects, checked if given. A tensor that is not
    contiguous, lies elsewhere, or has another type raises ValueError or TypeError: nothing is reinterpreted.
    Empty arrays are refused, since their data pointer is null.
    """
    if hasattr(array, "detach"):
        array = array.detach()
    if SIMULATED:
        host = array if isinstance(array, np.ndarray) else array.numpy()
        _check(host.shape, host.flags.c_contiguous, host.dtype, dtype)
        return FakeCUDAArray(host)  # a plain NumPy argument would be copied in and out: two views of one array would not agree
    if not hasattr(array, "__cuda_array_interface__"):
        raise TypeError(f"a kernel needs an array on the GPU, got {type(array).__name__} on the CPU; move it with .cuda()")
    interface = array.__cuda_array_interface__
    found = np.dtype(interface["typestr"])
    contiguous = array.is_contiguous() if hasattr(array, "is_contiguous") else interface.get("strides") is None
    _check(interface["shape"], contiguous, found, dtype)
    return cuda.as_cuda_array(array, sync=False)


def _check(shape, contiguous, found, wanted):
    if 0 in shape:
        raise ValueError(f"a kernel cannot take an empty array: shape {tuple(shape)}")
    if not contiguous:
        raise ValueError(f"a kernel needs a C-contiguous array, got strides for shape {tuple(shape)}; call .contiguous() first")
    if wanted is not None and np.dtype(wanted) != found:
        raise TypeError(f"a kernel needs {np.dtype(wanted)} here, got {found}; convert it first")


def stream(handle: int):
    """A Numba stream for a raw CUDA stream handle, such as `torch.cuda.current_stream().cuda_stream`."""
    return 0 if SIMULATED else cuda.external_stream(handle)


def most_registers(threads: int) -> int:
    """Registers a thread with which a block of `threads` can still be launched, a multiple of 8.

    A multiprocessor has four parts, each with 16,384 registers of its own, and shares out a block's warps among them; a thread
    has 255 at most. The compiler may take more unless told.
    """
    warps = blocks_for(threads, 4 * 32)
    return min(16_384 // (32 * warps) // 8 * 8, 255)


def blocks_for(n: int, threads: int) -> int:
    """Number of blocks of `threads` that cover n items; n must be at least 1 (CUDA has no empty grid)."""
    if n < 1:
        raise ValueError(f"a launch needs at least one item, got {n}")
    return (n + threads - 1) // threads


if SIMULATED:
    # The block is the warp here: launch simulated kernels with blockDim.x <= 32. `scratch` has a place a thread.

    @cuda.jit(device=True)
    def warp_sum(value, scratch):
        """Sum of `value` over the warp, in every lane, added in lane order of a butterfly."""
        lane = cuda.threadIdx.x
        cuda.syncthreads()
        scratch[lane] = value
        cuda.syncthreads()
        distance = 1
        while distance < cuda.blockDim.x:
            other = scratch[lane ^ distance] if (lane ^ distance) < cuda.blockDim.x else scratch.dtype.type(0)
            cuda.syncthreads()
            scratch[lane] += other
            cuda.syncthreads()
            distance *= 2
        return scratch[lane]

    @cuda.jit(device=True)
    def warp_max(value, scratch):
        """Maximum of `value` over the warp, in every lane."""
        lane = cuda.threadIdx.x
        cuda.syncthreads()
        scratch[lane] = value
        cuda.syncthreads()
        best = scratch[0]
        for other in range(1, cuda.blockDim.x):
            best = max(best, scratch[other])
        cuda.syncthreads()
        return best

    @cuda.jit(device=True)
    def group_sum(value, width, scratch):
        """`warp_sum` over groups of `width` lanes (a power of two); the block is the group here."""
        return warp_sum(value, scratch)

    @cuda.jit(device=True)
    def group_max(value, width, scratch):
        """`warp_max` over groups of `width` lanes."""
        return warp_max(value, scratch)

    @cuda.jit(device=True)
    def warp_scan(value, scratch):
        """Inclusive prefix sum over the lanes of the warp (Hillis-Steele)."""
        lane = cuda.threadIdx.x
        cuda.syncthreads()
        scratch[lane] = value
        cuda.syncthreads()
        distance = 1
        while distance < cuda.blockDim.x:
            other = scratch[lane - distance] if lane >= distance else scratch.dtype.type(0)
            cuda.syncthreads()
            scratch[lane] += other
            cuda.syncthreads()
            distance *= 2
        return scratch[lane]

    @cuda.jit(device=True)
    def warp_first(condition, scratch):
        """The lowest lane whose `condition` holds, or -1, in every lane."""
        lane = cuda.threadIdx.x
        cuda.syncthreads()
        scratch[lane] = 1 if condition else 0
        cuda.syncthreads()
        first = -1
        for other in range(cuda.blockDim.x):
            if scratch[other] != 0 and first < 0:
                first = other
        cuda.syncthreads()
        return first

    @cuda.jit(device=True)
    def warp_broadcast(value, source, scratch):
        """`value` of lane `source`, in every lane."""
        cuda.syncthreads()
        scratch[cuda.threadIdx.x] = value
        cuda.syncthreads()
        result = scratch[source]
        cuda.syncthreads()
        return result

    @cuda.jit(device=True)
    def warp_sync():
        """Orders the shared-memory accesses of a warp."""
        cuda.syncthreads()

    @cuda.jit(device=True)
    def warp_width():
        """Lanes of a warp: 32 on a GPU, the block size in the simulator."""
        return cuda.blockDim.x

else:

    @device
    def warp_sum(value, scratch):
        """Sum of `value` over the warp, in every lane, added in lane order of a butterfly."""
        distance = int32(1)
        while distance < 32:
            value += cuda.shfl_xor_sync(FULL_MASK, value, distance)
            distance *= int32(2)
        return value

    @device
    def warp_max(value, scratch):
        """Maximum of `value` over the warp, in every lane."""
        distance = int32(1)
        while distance < 32:
            value = max(value, cuda.shfl_xor_sync(FULL_MASK, value, distance))
            distance *= int32(2)
        return value

    @device
    def group_sum(value, width, scratch):
        """`warp_sum` over groups of `width` lanes (a power of two)."""
        distance = int32(1)
        while distance < width:
            value += cuda.shfl_xor_sync(FULL_MASK, value, distance)
            distance *= int32(2)
        return value

    @device
    def group_max(value, width, scratch):
        """`warp_max` over groups of `width` lanes."""
        distance = int32(1)
        while distance < width:
            value = max(value, cuda.shfl_xor_sync(FULL_MASK, value, distance))
            distance *= int32(2)
        return value

    @device
    def warp_scan(value, scratch):
        """Inclusive prefix sum over the lanes of the warp (Hillis-Steele)."""
        lane = cuda.threadIdx.x & 31
        distance = int32(1)
        while distance < 32:
            other = cuda.shfl_up_sync(FULL_MASK, value, distance)
            if lane >= distance:
                value += other
            distance *= int32(2)
        return value

    @device
    def warp_first(condition, scratch):
        """The lowest lane whose `condition` holds, or -1, in every lane."""
        return int32(cuda.ffs(cuda.ballot_sync(FULL_MASK, condition))) - int32(1)

    @device
    def warp_broadcast(value, source, scratch):
        """`value` of lane `source`, in every lane."""
        return cuda.shfl_sync(FULL_MASK, value, source)

    @device
    def warp_sync():
        """Orders the shared-memory accesses of a warp."""
        cuda.syncwarp()

    @device
    def warp_width():
        """Lanes of a warp: 32 on a GPU, the block size in the simulator."""
        return int32(32)


__all__ = [
    "FULL_MASK",
    "SIMULATED",
    "Both",
    "available",
    "blocks_for",
    "both",
    "compile_only",
    "cuda",
    "device",
    "float32",
    "group_max",
    "group_sum",
    "int32",
    "int64",
    "intrinsic",
    "jit",
    "numba",
    "rebound",
    "stream",
    "uint32",
    "view",
    "warp_broadcast",
    "warp_first",
    "warp_max",
    "warp_scan",
    "warp_sum",
    "warp_sync",
    "warp_width",
]
