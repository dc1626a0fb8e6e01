"""The four panels of ``01_coins_to_composition.ipynb``: a coin, one question again and again, delta, many releases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edp_lab.course.kit.controls import Control, decades, number
from edp_lab.course.kit.old_panel import FigurePanel, Picture
from edp_lab.course.nb01_coins import compute as coins
from edp_lab.course.nb01_coins import figures as coins_figures
from edp_lab.course.nb01_coins import words as coins_words

EPSILON, SEEDS = "nats", range(21)
PEOPLE = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000]
RELEASES = [int(stop) for stop in decades(0, 6) if stop.is_integer()]


def _panel(
    heading: str,
    controls: Mapping[str, Control],
    compute: Callable[..., Any],
    in_words: Callable[[Any], str],
    pictures: Sequence[Picture],
    commands: Callable[[Any], str] = lambda result: "",
) -> FigurePanel:
    """The panel whose command is the Python call, followed by `commands` of the result."""

    def command(result: Any, **values: Any) -> str:
        return coins_words.python("coins", compute, **values) + commands(result)

    return FigurePanel(heading, controls, compute, in_words, command, pictures)


def coin_panel(epsilon: float, people: int, share: float, seed: int) -> FigurePanel:
    """Randomised response: `result` is a `coins.Poll`."""
    controls = {
        "epsilon": number("ε of one answer", epsilon, decades(-2, 1), unit=EPSILON),
        "people": number("number of people", people, PEOPLE, unit="people"),
        "share": number("share of yes", share, [k / 100 for k in range(101)], unit="of 1"),
        "seed": number("seed", seed, SEEDS, unit="another draw"),
    }
    return _panel(
        "<h3>A coin for everyone</h3>What am I looking at? First, what people say once a coin has decided whether they "
        "tell the truth; then, what this gives away about all of them, and about one.",
        controls,
        coins.poll,
        coins_words.poll_in_words,
        [
            Picture(coins_figures.people_figure, coins_figures.update_people),
            Picture(coins_figures.poll_figure, coins_figures.update_poll),
        ],
    )


def averaging_panel(epsilon: float, sensitivity: int, queries: int, budget: float, seed: int) -> FigurePanel:
    """The averaging attack on Laplace noise: `result` is a `coins.Averaging`."""
    controls = {
        "epsilon": number("ε of one answer", epsilon, decades(-2, 1), unit=EPSILON),
        "sensitivity": number("sensitivity Δ", sensitivity, range(1, 21), unit="records/person"),
        "queries": number("number of queries", queries, [1, 2, 5, 10, 20, 50, 100, 200, 500], unit="answers"),
        "budget": number("budget", budget, decades(-1, 3), unit=EPSILON),
        "seed": number("seed", seed, SEEDS, unit="another draw"),
    }
    return _panel(
        "<h3>One question, again and again</h3>What am I looking at? First, noisy answers to one question and their "
        "average; then, what they cost, and how alike one answer is with and without a person.",
        controls,
        coins.averaging,
        coins_words.averaging_in_words,
        [
            Picture(coins_figures.answers_figure, coins_figures.update_answers),
            Picture(coins_figures.price_figure, coins_figures.update_price),
        ],
    )


def delta_panel(epsilon: float, sigma: float, sensitivity: float) -> FigurePanel:
    """The Gaussian mechanism: `result` is a `coins.GaussianCount`."""
    controls = {
        "epsilon": number("ε of one answer", epsilon, [0.0, *decades(-2, 1)], unit=EPSILON),
        "sigma": number("noise σ", sigma, decades(-1, 2), unit="people"),
        "sensitivity": number("sensitivity Δ", sensitivity, [float(k) for k in range(1, 21)], unit="people"),
    }
    return _panel(
        "<h3>δ, drawn</h3>What am I looking at? First, the two densities that an attacker weighs against each other; "
        "then, how much an answer betrays, and how large δ must be for each ε.",
        controls,
        coins.gaussian_count,
        coins_words.gaussian_in_words,
        [
            Picture(coins_figures.delta_figure, coins_figures.update_delta),
            Picture(coins_figures.loss_figure, coins_figures.update_loss),
        ],
        lambda result: _account(1 / result.mu, 1, result.delta),
    )


def composition_panel(epsilon: float, releases: int, delta: float, budget: float) -> FigurePanel:
    """Composition: `result` is a `coins.Composed`."""
    controls = {
        "epsilon": number("ε of one release", epsilon, decades(-3, 1), unit=EPSILON),
        "releases": number("number of releases", releases, RELEASES, unit="releases"),
        "delta": number("δ of the total", delta, decades(-12, -1), unit="probability"),
        "budget": number("total ε allowed", budget, decades(-1, 3), unit=EPSILON),
    }
    return _panel(
        "<h3>Many releases</h3>What am I looking at? First, what releases cost together, by four accounts; then, how "
        "many of them the same total pays for.",
        controls,
        coins.composed,
        coins_words.composed_in_words,
        [
            Picture(coins_figures.total_figure, coins_figures.update_total),
            Picture(coins_figures.allowed_figure, coins_figures.update_allowed),
        ],
        lambda result: _account(2**0.5 / result.epsilon, int(result.releases[-1]), result.delta),
    )


def _account(noise_multiplier: float, releases: int, delta: float) -> str:
    """A further line, where the command line can say the same of Gaussian noise."""
    return f"\n{coins_words.account(noise_multiplier, releases, delta)}" if 0 < delta < 1 else ""
