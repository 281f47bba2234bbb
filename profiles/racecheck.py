"""What compute-sanitizer's racecheck makes of named barriers: tiny kernels, each a process of its own, whose order is plain.

    compute-sanitizer --tool racecheck python profiles/racecheck.py whole       # 0 hazards
    compute-sanitizer --tool racecheck python profiles/racecheck.py bystander   # hazards, though there is no race
    compute-sanitizer --tool racecheck python profiles/racecheck.py race        # hazards, and there is one: the tool sees it

Two warps write numbers, a third reads them behind a named barrier of the three, writes their sum, and all of the block meet at the block's
own barrier; then everybody reads the sum. "bystander" has a fourth warp that passes the block's barrier alone: the read that is
reported comes after that barrier and the write before it. "whole" is the same without the fourth warp, where the named barrier covers
the block; "race" leaves the block's barrier out. The rollouts' roles are bystanders of each other's barriers, which is why they are
shown to racecheck with RLTRAIN_WHOLE_BARRIERS=1 (kernels.ptx).
"""

import argparse

import numpy as np

from numba_rl.gpu import cuda, int32, jit
from numba_rl.kernels.ptx import some_sync

ROUNDS, BLOCKS = 64, 24
WRITERS, READER, NAMED = 64, 32, 2  # threads, threads, the barrier of both


def make_kernel(meet: bool):
    """out int32 [blocks, threads]: each thread's total of the sums. meet: whether the block's own barrier is there."""

    def kernel(out):
        numbers = cuda.shared.array(WRITERS, int32)
        sums = cuda.shared.array(2, int32)
        thread = cuda.threadIdx.x
        total = int32(0)
        if thread < WRITERS:  # the roles have loops of their own, as those of a rollout have
            for i in range(ROUNDS):
                numbers[thread] = i
                some_sync(NAMED, WRITERS + READER)
                if meet:
                    cuda.syncthreads()
                total += sums[i & 1]
        elif thread < WRITERS + READER:
            for i in range(ROUNDS):
                some_sync(NAMED, WRITERS + READER)
                if thread == WRITERS:
                    sums[i & 1] = numbers[0] + numbers[WRITERS - 1]
                if meet:
                    cuda.syncthreads()
                total += sums[i & 1]
        else:
            for i in range(ROUNDS):
                if meet:
                    cuda.syncthreads()
                total += sums[i & 1]
        out[cuda.blockIdx.x, thread] = total

    return jit(kernel)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel", choices=["whole", "bystander", "race"])
    chosen = parser.parse_args().kernel
    threads = WRITERS + READER + (0 if chosen == "whole" else 32)
    out = cuda.to_device(np.zeros((BLOCKS, threads), np.int32))
    make_kernel(chosen != "race")[BLOCKS, threads](out)
    right = bool((out.copy_to_host() == ROUNDS * (ROUNDS - 1)).all())
    print(f"{chosen}: every thread has the {'right' if right else 'wrong'} total")


if __name__ == "__main__":
    main()
