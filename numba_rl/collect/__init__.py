"""Collecting experience: batched (any network, GPU or CPU) and fused (one launch, fixed network shape)."""
