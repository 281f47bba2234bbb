"""CUDA kernels, one operation a file. Nothing here imports torch.

A file whose loop is needed on the CPU path as well writes its body as a plain function and compiles it twice, for the GPU
(or the simulator) and for the CPU, so that no line stands twice.
"""
