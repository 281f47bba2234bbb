"""Kernels of a captured graph that are launched before the one before them has ended (programmatic dependent launch).

Between two short kernels a GPU loses time: the second one is set up only when the last thread of the first has gone. A kernel compiled
with `begin_function(True)` may be set up meanwhile; it calls `begin` first of all, which waits until what came before has ended and can
be read, and then lets its own follower be set up. Measured before it is used: half a microsecond is won where the replay's draw follows
its update, and as much is lost where an update's many blocks are set up beside the draw.

The instructions need compute capability 9.0. Outside a capture, and where the kernel follows anything but one single kernel, `start_early`
does nothing, and the launch is as any other.
"""

from cuda.bindings import driver

from numba_rl.gpu import SIMULATED, device

_PROGRAMMATIC_PORT = 1  # CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC


@device
def _begin_in_turn():
    """Nothing: the launch itself waits."""


def begin_function(early: bool):
    """Device function that every thread of a kernel calls before it reads or writes memory; early: for launches after `start_early`."""
    if not early:
        return _begin_in_turn
    from numba_rl.kernels.ptx import wait_for_previous

    return wait_for_previous


def can_start_early(capability: tuple[int, int]) -> bool:
    """Whether a card of this compute capability knows the instructions."""
    return not SIMULATED and capability >= (9, 0) and driver.CUDA_VERSION >= 13000  # older bindings take other arguments


def start_early(stream) -> None:
    """Lets the next kernel that is captured on `stream` (a Numba stream) be set up before the kernel that it follows has ended."""
    handle = int(stream.handle)
    status, _, _, nodes, *_ = _called(driver.cuStreamGetCaptureInfo(handle))
    if status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE or len(nodes) != 1:
        return
    if _called(driver.cuGraphNodeGetType(nodes[0]))[0] != driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
        return
    edge = driver.CUgraphEdgeData()
    edge.from_port = _PROGRAMMATIC_PORT
    edge.type = int(driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
    replace = int(driver.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES)
    _called(driver.cuStreamUpdateCaptureDependencies(handle, [nodes[0]], [edge], 1, replace))


def _called(returned):
    """The results of a driver call without its status."""
    status, *results = returned
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the CUDA driver refused to set a launch's dependencies: {status.name}")
    return results
