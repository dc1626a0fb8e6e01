"""The paper's claims about gradients while a model learns: rows P7, P30 and P31 of the claims ledger.

What they are given is measured by `paper_runs`, on a small CLC.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edp_lab.reproduce.evidence import Evidence, Verdict


def p7_first_norm(random: NDArray[np.float64], tuned: NDArray[np.float64]) -> Evidence:
    """Later gradient norms over the first one.

    Args:
        random, tuned: norms by step and layer (S, K), from random and from trained weights; see
            `paper_runs.gradient_norms`.
    """
    total = np.linalg.norm(random, axis=1)
    layers = random[1:].max(axis=0) / random[0]
    return Evidence(
        "P7",
        "The gradient norm of the first iteration is a rough upper bound of those throughout training.",
        'section 3, "Scaling"',
        {
            "steps": len(random),
            "layers": random.shape[1],
            "largest_over_first": float(total[1:].max() / total[0]),
            "layers_that_exceed": int((layers > 1).sum()),
            "largest_layer_over_first": float(layers.max()),
            "tuned_layer_over_first": float((tuned[1:].max(axis=0) / tuned[0]).max()),
            "rough": 2.0,
        },
        lambda m: Verdict.of(
            max(m["largest_layer_over_first"], m["tuned_layer_over_first"]) <= m["rough"],
            m["largest_over_first"] <= m["rough"],
        ),
        "From random weights, the norm of the whole gradient reaches {largest_over_first:.2f} times its first value in "
        "{steps} steps; by layer, as the scales have it, {layers_that_exceed} of {layers} exceed theirs, one "
        "{largest_layer_over_first:.1f} times. Where training goes on from trained weights, as in fine-tuning, a "
        "layer reaches {tuned_layer_over_first:.1f} times its first norm (small CLC, measured now).",
    )


def p30_layers_differ(norms: Mapping[str, float]) -> Evidence:
    """The first gradient's norms by layer."""
    found = sorted(norms.values())
    return Evidence(
        "P30",
        "The magnitude of the gradient differs between layers, so that one clip norm does not suit all.",
        'section 3, "Scaling", first sentences',
        {
            "layers": len(found),
            "smallest": found[0],
            "largest": found[-1],
            "times": found[-1] / found[0],
            "different": 3.0,
            "hardly_different": 1.5,
        },
        lambda m: Verdict.of(m["times"] >= m["different"], m["times"] > m["hardly_different"]),
        "On the first batch the norms of {layers} layers lie between {smallest:.2g} and {largest:.2g}, a factor of "
        "{times:.0f} (small CLC, measured now). What follows from it is another matter (P3, P21).",
    )


def p31_gradients_shrink(random: NDArray[np.float64]) -> Evidence:
    """Mean norm of the whole gradient in the first and in the last tenth of a training from random weights: (S, K)."""
    total, tenth = np.linalg.norm(random, axis=1), max(1, len(random) // 10)
    first, last = float(total[:tenth].mean()), float(total[-tenth:].mean())
    return Evidence(
        "P31",
        "Gradients get smaller towards convergence.",
        'section 3, "Noise Decay", second sentence',
        {"steps": len(random), "first": first, "last": last, "left_percent": 100 * last / first, "small_percent": 50.0},
        lambda m: Verdict.of(m["left_percent"] <= m["small_percent"], m["left_percent"] < 100),
        "In {steps} steps the norm of the gradient falls from {first:.1f} to {last:.1f}, to {left_percent:.0f} % "
        "(small CLC, measured now). Whether decaying the noise, too, is worth its price is "
        "another matter (P12).",
    )
