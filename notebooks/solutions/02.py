"""Solutions of the exercises in 02_dp_sgd.ipynb, each from its line ``# EXERCISE name`` to the next."""


# EXERCISE clip
def clip(gradients, C):
    """Every row clipped to length C: a tensor (B, P) -> a tensor (B, P). A row may be all zeros."""
    lengths = gradients.norm(dim=1, keepdim=True)
    return gradients * (C / lengths.clamp(min=1e-12)).clamp(max=1)


# EXERCISE noise
def noise_std(C, z, batch_size):
    """Standard deviation of the noise on each coordinate of the released mean."""
    return z * C / batch_size


# EXERCISE bug
def mended(gradients, C, z, noise):
    """The released mean of gradients (B, P), with one standard normal draw, noise (P)."""
    mean = by_norm(gradients, C).mean(0)
    return mean + C * z / len(gradients) * noise
