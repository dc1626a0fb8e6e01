"""Solutions to the exercises of 11_claims.ipynb; each begins at a line ``# EXERCISE name``."""


# EXERCISE verdict
def verdict(changes):
    falls = [mean + half_width < 0 for mean, half_width in changes]
    if all(falls):
        return "holds"
    return "holds under conditions" if any(falls) else "does not hold"


# EXERCISE noise
def noise_found(num_devices, clip_norm, z0):
    each = clip_norm * z0 / num_devices
    together = np.sqrt(num_devices) * each  # variances add up, standard deviations do not
    return together / num_devices
