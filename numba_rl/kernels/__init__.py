"""CUDA kernels, one operation a file. Nothing here imports torch.

A file whose loop is needed on the CPU path as well writes its body as a plain function and compiles it twice, for the GPU
(or the simulator) and for the CPU, so that no line stands twice.

Small code starts sooner. A kernel of a few microseconds that runs among others in a captured graph meets its machine code outside the
instruction cache: it takes as long as its bytes do, whatever a loop over it alone says. What makes them few:
- `while` loops whose step the compiler does not know (`cuda.blockDim.x`): it unrolls loops over constants by four, with a rest. Where several
  reads should be under way together, a small local array that is filled in a loop over a constant says so.
- 32-bit numbers: Numba's integers are 64 bits wide unless each result is wrapped, as in `uint32(a + b)`; unsigned places need no code for
  negative ones; a 64-bit division by a number that is not constant is a function of its own.
- A limit of registers, even one that is never reached: without it the compiler of small kernels saves registers by waiting for the first
  reads before it asks for the next. (Not where another kernel is to be set up beside this one: registers taken are room taken.)
Tests hold the kernels of an update to their sizes (tests/ptx.py, `check_code`).
"""
