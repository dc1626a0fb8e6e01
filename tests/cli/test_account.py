"""``edp-lab account``: the numbers of the derivation, the JSON output, and the ledger of a run."""

import json
import math
import re
from pathlib import Path

import pytest

from edp_lab.privacy import Mechanism, guaranteed_epsilon
from edp_lab.training.certificate import CERTIFICATE
from edp_lab.training.config import TrainConfig
from edp_lab.training.run_files import StepDone
from edp_lab.training.session import train


@pytest.fixture
def account(cli):
    """The JSON output of ``edp-lab account``."""

    def ask(*arguments: str) -> dict:
        status, out, err = cli("account", *arguments, "--json")
        assert (status, err) == (0, "")
        return json.loads(out)

    return ask


ONE_STEP = ("--clip", "1", "--z0", "1", "--epochs", "1", "--gpus", "8", "--delta", "1e-5")


def test_json_has_the_promised_keys(account):
    options = "--clip 2 --z0 1 --decay exponential --tau 0.1 --epochs 50 --gpus 8 --delta 5e-4"
    report = account(*options.split())
    assert {"claimed", "guaranteed", "noise_multiplier", "sensitivity", "noise_std"} <= set(report)
    assert {"epsilon", "rho", "method"} <= set(report["claimed"])
    assert {"epsilon", "mu", "method", "adjacency", "sampling", "delta", "reason"} <= set(report["guaranteed"])
    z = [math.exp(-0.1 * t) for t in range(50)]  # the first epoch has t = 0
    assert report["noise_multiplier"] == pytest.approx(z)
    assert report["noise_std"] == pytest.approx([4 * one for one in z])
    assert report["sensitivity"] == 4
    assert report["claimed"]["rho"] == pytest.approx(sum(0.5 / one**2 for one in z))
    assert report["guaranteed"]["mu"] == pytest.approx(math.sqrt(sum(1 / one**2 for one in z)))
    assert report["guaranteed"]["delta"] == 5e-4
    assert report["guaranteed"]["status"] == "holds"


CLAIMED = {"claimed.epsilon": 5.30, "claimed.rho": 0.5}
PRIVATE = {
    "guaranteed.epsilon": None,
    "guaranteed.mu": None,
    "guaranteed.reason": "alpha",
    "guaranteed.epsilon_if_alpha_public": 39.38,
}


def ideal(epsilon: float) -> dict[str, object]:
    """Expected output for float noise."""
    none = {"guaranteed.epsilon": None, "guaranteed.epsilon_if_seed_secret": None}
    return {**none, "guaranteed.reason": "real numbers", "guaranteed.epsilon_in_real_numbers": epsilon}


EXPECTED = {  # for ONE_STEP with these options: expected numbers, None, or words of a sentence
    "": {"guaranteed.mu": 1, "guaranteed.epsilon": 4.38, **CLAIMED},
    "--epochs 4": {"guaranteed.mu": 2, "guaranteed.epsilon": 10.00},
    "--micro-batch-size 1 --adjacency replace_one": {"guaranteed.mu": 2, "guaranteed.epsilon": 10.00, **CLAIMED},
    "--micro-batch-size 1": {"guaranteed.mu": 1, "guaranteed.epsilon": 4.38, **CLAIMED},
    "--adjacency REPLACE_ONE": {"guaranteed.mu": 1, "guaranteed.epsilon": 4.38, **CLAIMED},
    "--utterances-per-person 4": {"guaranteed.mu": 4, "guaranteed.epsilon": 24.38, **CLAIMED},
    "--as-printed --alpha-source public": {"guaranteed.mu": 5.657, **ideal(39.38), **CLAIMED},
    "--as-printed --alpha-source public --gpus 4": {"guaranteed.mu": 4, **ideal(24.38), **CLAIMED},
    "--as-printed --alpha-source none --micro-batch-size 1": {"guaranteed.mu": 2.828, **ideal(15.46), **CLAIMED},
    "--as-printed --alpha-source public --gpus 1 --alpha-max 2": {"guaranteed.mu": 4, **ideal(24.38), **CLAIMED},
    "--as-printed": {**PRIVATE, **CLAIMED},
    "--adjacency add_or_remove_one": {
        "guaranteed.epsilon": None, "noise_multiplier": [None], "guaranteed.reason": "zero-out",
    },
    "--sampling-rate 0.1 --adjacency replace_one": {
        "guaranteed.epsilon": None, "claimed.epsilon": None, "claimed.reason": "not for Poisson sampling",
    },
    "--decay exponential --tau 1000 --epochs 3": {"guaranteed.epsilon": None, "guaranteed.reason": "noise"},
}  # fmt: skip


@pytest.mark.parametrize("options", EXPECTED)
def test_what_is_known_by_hand(account, options):
    """If there is no number, the output gives the reason."""
    report = account(*ONE_STEP, *options.split())
    for path, value in EXPECTED[options].items():
        found = report
        for name in path.split("."):
            found = found[name]
        assert value in found if isinstance(value, str) else found == (value and pytest.approx(value, abs=0.005)), path


def test_poisson_sampling_by_steps_or_by_epochs(account):
    options = ("--sampling-rate", "0.01", "--delta", "1e-5", "--z0", "1.2", "--gpus", "4", "--micro-batch-size", "1")
    by_steps, by_epochs = account(*options, "--steps", "1000"), account(*options, "--epochs", "10")
    assert by_steps == by_epochs
    assert by_steps["releases"] == 1000
    assert by_steps["guaranteed"]["adjacency"] == "ADD_OR_REMOVE_ONE"
    assert "Poisson" in by_steps["guaranteed"]["sampling"]
    broken_off = account(*options, "--steps", "150")
    assert (broken_off["epochs"], broken_off["releases"]) == (2, 150)


# Wording


def test_a_person_reads_both_epsilons_and_their_scope(output_of):
    out, err = output_of("account", *ONE_STEP, "--as-printed")
    assert err == ""
    for said in (
        "Algorithm 1 as printed",
        "claimed epsilon 5.2",
        "guaranteed epsilon none",
        "39.3",
        "if alpha were public",
        "adversary",
    ):
        assert said in " ".join(out.split())
    out, _ = output_of("account", *ONE_STEP, "--decay", "linear", "--epochs", "5")
    for said in ("sound eDP-SGD", "noise / sensitivity 1 in the first epoch"):
        assert said in " ".join(out.split())


# The ledger of a run


def trained(corpus: str, out: Path, **changes: object) -> Path:
    """A run that was interrupted in its second epoch."""

    def ctrl_c(event: object) -> None:
        if isinstance(event, StepDone) and event.epoch == 1:
            raise KeyboardInterrupt

    settings = {"size": "small", "epochs": 5, "batch_size": 16, "num_devices": 4, "z0": 0.9, "decay": "linear"}
    train(TrainConfig(corpus=corpus, **{**settings, "tau": 0.5, **changes}), out, ctrl_c)
    return out


@pytest.fixture(scope="module")
def run(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(corpus, tmp_path_factory.mktemp("runs") / "run", private_seed=True)


def test_a_run_is_judged_by_its_ledger(account, run):
    report = account("--run", str(run), "--delta", "1e-3")
    mechanism = Mechanism.sound(1.0, 0.9, 4, 4, "linear", 0.5)
    assert report["guaranteed"]["epsilon"] == pytest.approx(guaranteed_epsilon(mechanism, 2, 1e-3), rel=1e-12)
    assert report["guaranteed"]["status"] == "holds"
    assert (report["epochs"], report["releases"]) == (2, 2)
    assert report["noise_multiplier"] == pytest.approx([0.9, 0.6])
    record = json.loads((run / "record.json").read_text())
    own_delta = account("--run", str(run))["guaranteed"]
    assert (own_delta["delta"], own_delta["epsilon"]) == (
        record["guarantee"]["delta"],
        record["final"]["conditional_epsilon"],
    )


def test_a_run_with_a_published_seed_does_not_hold(cli, account, corpus, tmp_path):
    published = trained(corpus, tmp_path / "run")
    report = account("--run", str(published))
    assert report["guaranteed"]["status"] == "void: seed published"
    assert report["guaranteed"]["epsilon"] is None
    assert report["guaranteed"]["epsilon_if_seed_secret"] > 0
    assert "attack" not in report
    assert "published" in report["guaranteed"]["reason"]
    assert "published seed" in cli("account", "--run", str(published))[1]


def test_a_run_with_poisson_sampling_is_judged_as_its_certificate_says(account, corpus, tmp_path):
    settings = {"method": "dp-sgd", "z0": 1.0, "size": "small", "epochs": 1, "batch_size": 16, "private_seed": True}
    train(TrainConfig(corpus, **settings), tmp_path / "run")
    certified = account("--run", str(tmp_path / "run"))
    assert certified["guaranteed"]["epsilon"] == certified["certificate"]["guaranteed_epsilon"]
    (tmp_path / "run" / CERTIFICATE).unlink()
    assert account("--run", str(tmp_path / "run"))["guaranteed"] == certified["guaranteed"]


@pytest.mark.parametrize("z0", ["0.7", "1.3", "2.1", "3.3", "5.9"])
def test_what_holds_is_printed_no_smaller_than_it_is(cli, account, z0):
    options = ("--z0", z0, "--epochs", "7")
    printed = float(re.search(r"guaranteed epsilon +(\S+)", cli("account", *options)[1])[1])
    epsilon = account(*options)["guaranteed"]["epsilon"]
    assert epsilon <= printed <= epsilon * 1.00001


# Claims made with another library


def test_the_verdict_on_a_claim_is_the_exit_status(cli):
    run = "--sampler shuffle --n 60000 --batch-size 256 --epochs 10 --noise-multiplier 1 --delta 1e-5"
    options = ("account", *run.split(), "--micro-batch-size", "1", "--claimed")
    status, out, err = cli(*options, "1.1")
    assert (status, err) == (1, "")
    for said in ("claimed epsilon 1.1: false", "guaranteed epsilon 17.8", "measured epsilon at least 4.4", "zero-out"):
        assert said in " ".join(out.split())
    status, out, _ = cli(*options, "17.9", "--json")
    report = json.loads(out)
    assert (status, report["status"], report["settings"]["n"]) == (0, "holds", 60_000)
