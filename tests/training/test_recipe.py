"""Runs for a given epsilon: the recipe for a corpus, the run's promise, and a certificate that is true."""

import json
import shutil
from dataclasses import replace

import pytest

from edp_lab.cli.terminal import Screen
from edp_lab.cli.train import _plan_to_read, listening
from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.smart_home import generate, write_jsonl
from edp_lab.errors import UsageError
from edp_lab.models import public_start
from edp_lab.models.factory import load_model, save_model
from edp_lab.privacy import judge
from edp_lab.privacy.guarantee import upward
from edp_lab.training.certificate import CERTIFICATE, PAGE, certificate, check_certificate
from edp_lab.training.recipe import plan, recipe
from edp_lab.training.run_files import SECRET, EpochDone, read_record, run_ledger, write_record
from edp_lab.training.session import resume, train


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("own") / "own.jsonl"
    write_jsonl(generate(800, 5), path)
    return str(path)


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    made = plan(corpus, 8.0, epochs=2, batch_size=90)
    folder = tmp_path_factory.mktemp("runs") / "run"
    return made, train(made.config, folder), folder


@pytest.mark.parametrize(("epsilon", "given"), [(8.0, {}), (3.0, {"method": "edp-sgd", "num_devices": 4, "epochs": 2})])
def test_the_noise_keeps_epsilon_and_not_much_more(corpus, epsilon, given):
    made = plan(corpus, epsilon, **given)
    config = made.config
    found = judge(config.mechanism(made.protected), config.epochs, made.delta, False)
    assert found.status == "holds"
    assert 0.99 * epsilon <= found.guaranteed_epsilon <= epsilon
    assert config.private_seed
    assert given.items() <= vars(config).items()
    settings = {line.setting: line.value for line in made.lines}
    assert {line.setting for line in made.lines if line.why == "as given"} == settings.keys() & given.keys()
    assert settings.items() <= vars(config).items()
    assert made.steps == config.epochs * config.mechanism(made.protected).releases_per_epoch
    assert made.public


@pytest.mark.parametrize(("n", "batch", "steps"), [(2001, 1001, 160), (45_000, 1400, 160), (450_000, 8385, 320)])
def test_a_step_takes_a_large_share_and_another_batch_as_many_steps(n, batch, steps):
    for given in ({}, {"batch_size": n // 20}):
        own = {line.setting: line.value for line in recipe(n, "public-start", **given)}
        assert (own["batch_size"], own["frozen"]) == (batch, n < 100_000)
        assert own["epochs"] * n / given.get("batch_size", batch) == pytest.approx(steps, rel=0.1)


@pytest.mark.parametrize("n", [2_000, 12_000])
@pytest.mark.parametrize(("frozen", "rate", "passes"), [(True, 0.01, 2), (False, 0.015, 4)])
def test_rate_and_batch_go_with_what_is_trained_even_if_that_is_given(n, frozen, rate, passes):
    own = {line.setting: line.value for line in recipe(n, "public-start", frozen=frozen)}
    assert (own["lr"], own["batch_size"], own["clip_norm"]) == (rate, n // passes, 1.0 if frozen else 0.1)
    assert own.get("lr_schedule", "linear") == ("constant" if frozen else "linear")
    assert (recipe(n, "public-start") == recipe(n, "public-start", frozen=frozen)) == frozen


def test_a_run_ends_with_a_certificate_whose_numbers_come_from_the_ledger(run):
    made, record, folder = run
    told = check_certificate(folder)
    assert record["corpus"]["sha256"][:16] not in (folder / CERTIFICATE).read_text()
    assert told == json.loads((folder / CERTIFICATE).read_text())
    assert told["guaranteed_epsilon"] == record["final"]["guaranteed_epsilon"] <= 8
    assert told["guaranteed_epsilon"] == pytest.approx(8, rel=1e-2)
    assert told["releases"] == len(run_ledger(folder).releases) == made.steps
    assert told["protected"] == made.protected
    assert told["delta"] == made.protected**-1.1
    assert told["model_sha256"] == read_record(folder)["model_sha256"]
    assert not (folder / SECRET).exists()
    assert any("several utterances of one person" in one for one in told["not_covered"])
    assert "/" not in told["corpus"]
    page = (folder / PAGE).read_text()
    assert "ε" in page
    assert "everyday" in page  # the starting model


COPIES = {  # number of copies of each text, forms of a text, and the frequency of the most frequent text
    "ten of each": (10, ["item{} please"], 10),
    "near-copies": (2, ["item{} please", "Item{} Please", "ｉtem{} please"], 6),
    "three of each": (3, ["item{} please"], 3),
    "none": (1, ["item{} please"], 1),
}


@pytest.mark.parametrize("kind", COPIES)
def test_plan_and_certificate_say_what_epsilon_equal_utterances_have_together(tmp_path, capsys, kind):
    times, forms, most = COPIES[kind]
    texts = [form.format(k) for k in range(600 // times // len(forms)) for form in forms for _ in range(times)]
    rows = [{"text": text, "intent": ("buy", "sell")[hash(len(text)) % 2]} for text in texts]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made = plan(str(tmp_path / "own.jsonl"), 8.0, epochs=2)
    group = judge(made.config.mechanism(made.protected), 2, made.delta, False, utterances_per_person=most)
    assert made.copies == most
    assert made.copies_epsilon == pytest.approx(group.guaranteed_epsilon, rel=1e-2)
    assert (made.copies_epsilon > 8) == (most > 1)
    Screen().report(_plan_to_read(made))
    said = f"equal utterances up to {most}, with epsilon {upward(made.copies_epsilon, 4)} together"
    assert (said in " ".join(capsys.readouterr().out.split())) == (most > 1)
    train(made.config, tmp_path / "run")
    told = check_certificate(tmp_path / "run")
    assert (told["copies"], told["copies_epsilon"]) == (most, pytest.approx(made.copies_epsilon, rel=1e-2))
    assert "the largest number of equal utterances" in told["not_covered"]
    assert f"ε = {upward(told['copies_epsilon'], 4)}" in (tmp_path / "run" / PAGE).read_text()
    (tmp_path / "run" / CERTIFICATE).write_text(json.dumps({**told, "copies": 1, "copies_epsilon": 1.0}))
    with pytest.raises(UsageError, match="says copies"):
        check_certificate(tmp_path / "run")


def test_a_run_of_before_copies_were_counted_keeps_its_certificate(run, tmp_path):
    *_, folder = run
    shutil.copytree(folder, tmp_path / "copy")
    record = read_record(folder)
    del record["corpus"]["copies"]
    write_record(tmp_path / "copy", record)
    assert "copies" not in certificate(tmp_path / "copy")
    (tmp_path / "copy" / CERTIFICATE).unlink()
    resume(tmp_path / "copy")
    assert "equal utterances" not in (tmp_path / "copy" / PAGE).read_text().partition("Not covered")[0]


def test_epochs_show_what_the_certificate_will_say(run, capsys):
    made, record, folder = run
    first, last = record["epochs"]
    certified = json.loads((folder / CERTIFICATE).read_text())["guaranteed_epsilon"]
    assert last["guaranteed_epsilon"] == record["final"]["guaranteed_epsilon"] == certified
    assert (
        first["guaranteed_epsilon"]
        == judge(made.config.mechanism(made.protected), 1, made.delta, False).guaranteed_epsilon
    )
    with listening() as listen:
        listen(EpochDone(1, 2, {**last, "conditional_epsilon": 7.9861}, "holds"))
    assert "epsilon 7.99 " in "".join(capsys.readouterr())  # rounded up


@pytest.mark.parametrize(
    ("name", "value"),
    [("guaranteed_epsilon", 1.0), ("unit", "one country"), ("releases", 1), ("public_by_assumption", [])],
)
def test_a_certificate_that_says_more_than_the_ledger_is_refused(run, tmp_path, name, value):
    *_, folder = run
    other = tmp_path / "copy"
    other.mkdir()
    for file in ("record.json", "ledger.jsonl"):
        (other / file).write_bytes((folder / file).read_bytes())
    content = json.loads((folder / CERTIFICATE).read_text())
    (other / CERTIFICATE).write_text(json.dumps({**content, name: value}))
    with pytest.raises(UsageError, match=f"says {name}"):
        check_certificate(other)


@pytest.mark.parametrize("changed", ["more", "page", "model"])
def test_a_certificate_beside_another_page_or_model_is_refused(run, tmp_path, changed):
    *_, folder = run
    other = tmp_path / "copy"
    shutil.copytree(folder, other)
    assert check_certificate(other)
    content = json.loads((other / CERTIFICATE).read_text())
    if changed == "more":
        (other / CERTIFICATE).write_text(json.dumps({**content, "epsilon_total": 0.01}))
    elif changed == "page":
        (other / PAGE).write_text((other / PAGE).read_text().replace("utterance", "word"))
    else:
        model = load_model(other / "model")
        next(model.parameters()).data.add_(1.0)
        save_model(model, other / "model", "")
    hint = "; if another version wrote it, remove both files and run edp-lab train --resume .* to restore them"
    says = {"more": f"epsilon_total.*{hint}", "page": f"differs.*{hint}", "model": "not the one"}
    with pytest.raises(UsageError, match=says[changed]):
        check_certificate(other)
    if changed != "model":
        (other / CERTIFICATE).unlink(), (other / PAGE).unlink()
        resume(other)  # following the message's advice
        assert check_certificate(other)


def test_a_delta_that_promises_nothing_gets_no_certificate(run, tmp_path):
    made, *_ = run
    train(replace(made.config, delta=0.5), tmp_path / "run")
    assert not (tmp_path / "run" / CERTIFICATE).exists()
    with pytest.raises(UsageError, match=r"delta 0\.5 is not below 1/n"):
        certificate(tmp_path / "run")


@pytest.mark.parametrize("tokens", ["words", "characters"])
def test_a_start_that_was_made_from_the_private_text_is_refused(corpus, tmp_path, tokens):
    start = tmp_path / "start"
    texts = (one.text for one in load_corpus(corpus).utterances[::3])
    public_start.save_start(public_start.load_start("public-start"), start, (), texts)
    with pytest.raises(UsageError, match=r"has read [23]\d% of the different .* such as .*, so no epsilon would hold"):
        plan(corpus, 8.0, pretrained=str(start), tokens=tokens)


def test_a_published_seed_gets_no_certificate(run, tmp_path):
    made, *_ = run
    train(replace(made.config, private_seed=False), tmp_path / "open")
    assert not (tmp_path / "open" / CERTIFICATE).exists()
    assert check_certificate(tmp_path / "open") is None


def test_what_cannot_be_private_is_refused_before_work(corpus):
    with pytest.raises(UsageError, match=r"too few for epsilon 0\.01.*use about"):
        plan(corpus, 0.01)
    with pytest.raises(UsageError, match=r"delta 0\.01 would permit publishing one of 3\d\d .*: give less than 0\.002"):
        plan(corpus, 3.0, delta=0.01)
    with pytest.raises(UsageError, match="with a published seed, no epsilon is guaranteed"):
        plan(corpus, 3.0, private_seed=False)
