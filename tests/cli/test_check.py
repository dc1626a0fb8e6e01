"""``edp-lab check``: settings as other libraries write them, its exit status, its sentences."""

import json

import pytest

from edp_lab.cli.check import setting_of, settings_of
from edp_lab.errors import UsageError
from edp_lab.privacy.check import Sampler

OPACUS = {"noise_multiplier": 1.1, "max_grad_norm": 1.0, "batch_size": 250, "dataset_size": 6_001, "epochs": 4}
KERAS = {
    "clipping_norm": 1,
    "batch_size": 64,
    "gradient_accumulation_steps": 4,
    "train_steps": 100,
    "train_size": 8_000,
}
TF = {"l2_norm_clip": 1, "noise_multiplier": 1, "num_microbatches": 8, "batch_size": 64, "n": 6_400, "epochs": 2}
DELTA = {"delta": 1e-5}


BAND = {"plan": {"iterations": 100, "expected_participations": 5, "strategy": [1.0]}, "num_examples": 1000}
FIXED = {"batch_size": 50, "iterations": 100, "replace": False, "n": 1000}
BINS = {"sampler": "BallsInBinsSampling", "iterations": 100, "cycle_length": 20, "n": 1000}
CYCLE = {"sampling_prob": 1, "iterations": 100, "cycle_length": 20, "n": 1000}
ALLOTTED = {"sampler": "RandomAllocationSampling", "iterations": 100, "total_participations": 5, "n": 1000}
ONE = {**KERAS, "poisson_sampling_in_fit": True, "gradient_accumulation_steps": 1}
SHUFFLED = {"poisson_sampling": False}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (OPACUS, {"sampler": Sampler.POISSON, "steps": 100, "batch_size": pytest.approx(6_001 / 25)}),
        ({**OPACUS, "drop_last": True}, {"steps": 96, "batch_size": pytest.approx(6_001 / 24)}),
        ({**OPACUS, **SHUFFLED}, {"sampler": Sampler.SHUFFLE, "steps": 100, "epochs": 4, "batch_size": 250}),
        ({**OPACUS, **SHUFFLED, "shuffle": False}, {"sampler": Sampler.FIXED_ORDER}),
        ({**OPACUS, "max_grad_norm": [3, 4]}, {"clip_norm": 5}),
        (KERAS, {"sampler": Sampler.SHUFFLE, "batch_size": 256, "epochs": 4}),  # unless told otherwise
        (ONE, {"sampler": Sampler.POISSON, "batch_size": 64}),
        ({**KERAS, "microbatch_size": 8}, {"micro_batch_size": 1}),  # its microbatches share no clip
        (BAND, {"sampler": Sampler.POISSON, "batch_size": 50, "steps": 100}),
        (FIXED, {"sampler": Sampler.FIXED_SIZE}),
        ({**FIXED, "sampler": "FixedBatchSampling", "replace": True}, {"sampler": Sampler.WITH_REPLACEMENT}),
        (BINS, {"sampler": Sampler.BALLS_IN_BINS, "batch_size": 50, "epochs": 5}),
        (CYCLE, {"sampler": Sampler.FIXED_ORDER, "batch_size": 50, "epochs": 5}),
        ({**CYCLE, "partition_type": "PartitionType.INDEPENDENT"}, {"sampler": Sampler.BALLS_IN_BINS, "epochs": 5}),
        (ALLOTTED, {"sampler": Sampler.RANDOM_ALLOCATION, "batch_size": 50, "epochs": 5}),
        ({**TF, "sampler": "shuffle"}, {"micro_batch_size": 8, "steps": 200}),
    ],
)
def test_settings_of_other_libraries(content, expected):
    setting = setting_of(settings_of({"noise_multiplier": 1, **content, **DELTA}))
    assert {name: getattr(setting, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "holds no settings"),
        ({**OPACUS, "clipping": "adaptive"}, "adaptive"),
        ({**OPACUS, "strategy": [1, 0.5]}, "correlated"),
        ({**CYCLE, "num_bands": 4}, "num_bands"),
        ({**ONE, "gradient_accumulation_steps": 4}, "count several times"),
        ({**OPACUS, "n": 7_000}, "twice"),
        ({"pretrain": {"noise_multiplier": 0.5}, "finetune": {"noise_multiplier": 4.0}, **ONE}, "twice, 0.5 and 4.0"),
        ({**OPACUS, "poisson_samplng": False}, "did you mean poisson_sampling"),
        ({**OPACUS, "shuffle": True}, "Opacus would sample all the same"),
        ({**OPACUS, "batch_size": "many"}, "batch_size is 'many'"),
        ({"sampler": "shuffle", "n": 6_000, "batch_size": 60, "steps": 1_000, "epochs": 1}, "1,000 steps .* not 1 ep"),
        ({"sampler": "poisson", "n": 6_000, "batch_size": 60, "steps": 100, "epochs": 50}, "100 steps .* not 50 ep"),
        ({"sampler": "poisson", "sampling_prob": 0.1, "cycle_length": 4, "n": 100}, "cycle"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_one_sentence(content, said):
    with pytest.raises(UsageError, match=said):
        setting_of(settings_of({**content, **DELTA} if content else content))


def test_verdict_is_the_exit_status_and_options_go_before_the_file(cli, tmp_path):
    file = tmp_path / "opacus.json"
    file.write_text(json.dumps({**OPACUS, "poisson_sampling": False, "epsilon": 3.0, "lr": 0.1, **DELTA}))
    status, out, err = cli("check", str(file))
    assert (status, err) == (1, "")
    for said in ("shuffle", "claimed", "Poisson sampling", "no bound is known", "not read: lr", "assumed"):
        assert said in out
    status, out, _ = cli("check", str(file), "--sampler", "poisson", "--json")
    found = json.loads(out)
    assert (status, found["status"], found["mend"]) == (0, "holds", "")
    assert found["holds"]["add_or_remove_one"]["epsilon"] < 3
    status, out, _ = cli("check", str(file), "--adjacency", "ADD_OR_REMOVE_ONE", "--json")
    assert (status, json.loads(out)["holds"]["add_or_remove_one"]["epsilon"]) == (1, None)


def test_a_sampler_that_is_given_beside_a_file_changes_what_the_file_means(cli, tmp_path):
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({**OPACUS, **DELTA}))
    assert json.loads(cli("check", str(file), "--sampler", "shuffle", "--json")[1])["setting"]["batch_size"] == 250
    file.write_text(json.dumps({**KERAS, **DELTA, "noise_multiplier": 1.0}))
    assert "count several times" in cli("check", str(file), "--sampler", "poisson")[2]


def test_verdicts_say_what_holds_what_attacks_reach_and_which_noise_was_assumed(cli, tmp_path):
    file = tmp_path / "settings.json"

    def told(content):
        file.write_text(json.dumps({**content, **DELTA}))
        return cli("check", str(file))[1]

    guessed = told({**OPACUS, "epsilon": 9.0})
    assert "holds for add or remove one; 2." in guessed
    assert "Poisson sampling is assumed" in guessed
    assert "is assumed" not in told({**OPACUS, "poisson_sampling": True, "epsilon": 9.0})
    assert "was not given: it is what Poisson sampling needs" in told(
        {**OPACUS, "noise_multiplier": None, "epsilon": 3}
    )
    once = told({**BINS, "noise_multiplier": 1.0, "epsilon": 2.0})
    assert "the claim is false: attacks reach epsilon" in once
    anew = told({**BINS, "sampler": "random-allocation", "noise_multiplier": 1.0, "epsilon": 3.0})
    assert "not shown: the least that is known to hold is 3.48381; attacks reach 1.99" in anew  # rounded up, down


def test_a_file_that_gives_a_name_twice_is_refused(cli, tmp_path):
    file = tmp_path / "settings.json"
    file.write_text('{"noise_multiplier": 0.5, "noise_multiplier": 4, "n": 100}')
    assert "'noise_multiplier' is there twice" in cli("check", str(file))[2]


def test_of_two_rates_that_hardly_differ_the_costlier_one_counts():
    given = {"sampler": "poisson", "n": 10_000, "batch_size": 100, "sampling_rate": 0.0101, "steps": 1, **DELTA}
    assert setting_of({**given, "noise_multiplier": 1}).rate == pytest.approx(0.0101)
