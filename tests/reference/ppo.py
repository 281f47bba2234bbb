"""The PPO loss of one minibatch and its gradients, float64, by autograd; a layer's backward and the optimizer's step."""

import numpy as np
import torch


def ppo_loss(logits, hidden, head, actions, old_log_probs, advantages, returns, clip, value_coef, entropy_coef):
    """Loss parts and the gradients by logits, hidden and head. logits [M, A] with their bias; hidden [M, H]; head [H + 1]."""
    x, h, w = (torch.tensor(np.asarray(value, np.float64), requires_grad=True) for value in (logits, hidden, head))
    a = torch.as_tensor(np.asarray(advantages, np.float64))
    a = (a - a.mean()) / (a.std(correction=1) + 1e-8)
    log_pi = torch.log_softmax(x, -1)
    chosen = log_pi.gather(1, torch.as_tensor(np.asarray(actions, np.int64))[:, None])[:, 0]
    log_ratio = (chosen - torch.as_tensor(np.asarray(old_log_probs, np.float64))).clamp(-20, 20)
    ratio = log_ratio.exp()
    policy = -torch.minimum(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a).mean()
    entropy = -(log_pi.exp() * log_pi).sum(-1).mean()
    value = (h @ w[:-1] + w[-1] - torch.as_tensor(np.asarray(returns, np.float64))).square().mean()
    (policy + value_coef * value - entropy_coef * entropy).backward()
    kl = (ratio - 1 - log_ratio).mean()
    clipped = ((ratio - 1).abs() > clip).double().mean()
    parts = {name: float(part.detach()) for name, part in
             {"policy": policy, "value": value, "entropy": entropy, "kl": kl, "clipped": clipped}.items()}  # fmt: skip
    return parts, x.grad.numpy(), h.grad.numpy(), w.grad.numpy()


def first_layer(gradient, hidden, x):
    """Gradients of a ReLU layer's weights [F, I] and biases [F] from that at its outputs [M, F], the outputs and the inputs [M, I]."""
    through = np.where(hidden > 0, gradient, 0.0).astype(np.float64)
    return through.T @ x.astype(np.float64), through.sum(0)


def adam(parameters, first, second, gradient, step, rate, beta1, beta2, epsilon, max_norm, decay=0.0):
    """One Adam step with decoupled weight decay after clipping by the global norm, float64; returns (parameters, first, second)."""
    gradient = gradient * min(1.0, max_norm / (np.sqrt((gradient**2).sum()) + 1e-6))
    first = beta1 * first + (1 - beta1) * gradient
    second = beta2 * second + (1 - beta2) * gradient**2
    change = rate * (first / (1 - beta1**step)) / (np.sqrt(second / (1 - beta2**step)) + epsilon)
    return (1 - rate * decay) * parameters - change, first, second
