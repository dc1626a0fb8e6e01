"""The smart-home generator: frozen, reproducible, varied, validly annotated, and as difficult as documented."""

import gzip
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edp_lab.corpora import smart_home
from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import Utterance
from edp_lab.corpora.smart_home import DOMAINS, GRAMMAR_VERSION, INTENTS, generate, load
from edp_lab.errors import UsageError

domains = st.sampled_from([None, *DOMAINS])


@pytest.fixture(scope="module")
def large() -> tuple[Utterance, ...]:
    return generate(60_000, seed=2).utterances


def test_grammar_is_frozen_and_seeds_and_domains_give_different_corpora():
    """Results depend on this corpus: if you change the draws, raise the version and recompute the results."""
    assert GRAMMAR_VERSION == 1
    assert generate(2000, seed=0).sha256 == "62f70eab942b9da3ca2c07bab737f08799e87896fe4399fd627b56029c36b3a0"
    texts = [frozenset(u.text for u in generate(300, s, d).utterances) for s in (0, 1) for d in (None, *DOMAINS)]
    assert all(len(a & b) < 10 for i, a in enumerate(texts) for b in texts[:i])


@settings(max_examples=10)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(-5, 2**70), domains)
def test_smaller_corpus_is_a_prefix_of_a_larger_one(few, more, seed, domain):
    assert generate(few + more, seed, domain).utterances[:few] == generate(few, seed, domain).utterances


@pytest.mark.parametrize("domain", [None, *DOMAINS])
def test_annotation_is_valid_and_declared(domain):
    corpus = generate(5_000, seed=5, domain=domain)
    assert corpus.labels_declared
    tags, intents = set(corpus.tags), set(corpus.intents)
    for u in corpus.utterances:
        assert u.tags is not None
        assert 3 <= len(u.tokens) == len(u.tags) <= 15
        assert u.intent in intents
        assert tags.issuperset(u.tags)
        assert all(tag[0] != "I" or before[2:] == tag[2:] for before, tag in pairwise(("O", *u.tags)))
        assert all(token and token == token.lower() and not token.isspace() for token in u.tokens)
    assert {u.intent for u in corpus.utterances} == intents
    assert {tag[2:] for u in corpus.utterances for tag in u.tags or () if tag != "O"} == set(corpus.slots)
    assert (len(intents), 8 <= len(corpus.slots) <= 27) == (8 if domain else 24, True)


def test_domains_mix_evenly_and_nearly_all_utterances_are_distinct(large):
    of = {intent: domain for domain, intents in INTENTS.items() for intent in intents}
    assert len(of) == sum(len(intents) for intents in INTENTS.values())
    drawn = [of[u.intent] for u in large]
    assert all(0.31 < drawn.count(domain) / len(drawn) < 0.36 for domain in DOMAINS)
    slots = [set(generate(1, 0, domain).slots) for domain in DOMAINS]
    assert {"date", "time"} <= slots[0] & slots[1] & slots[2]
    assert len({u.tokens for u in large}) >= 0.98 * len(large)  # 0.993 at 1,000,000
    known = {token for u in large[:20_000] for token in u.tokens}
    with_new_word = sum(any(token not in known for token in u.tokens) for u in large[20_000:40_000])
    assert 0.05 < with_new_word / 20_000 < 0.5


def test_annotation_errors_are_as_frequent_as_stated():
    n = 40_000
    wrong = sum((u.tags, u.intent) != meant for u, meant in smart_home._samples(n, 6, None))
    assert abs(wrong / n - 0.03) < 4 * (0.03 * 0.97 / n) ** 0.5


def test_embedded_copy_is_what_the_generator_gives_and_its_domains_partition_it():
    corpus = load_corpus("smart-home")
    assert corpus.sha256 == generate(smart_home.EMBEDDED_UTTERANCES, smart_home.EMBEDDED_SEED).sha256
    assert corpus.sha256 in smart_home.EMBEDDED.with_name("README.md").read_text(encoding="utf-8")
    assert smart_home.EMBEDDED.stat().st_size < 600_000
    parts = [load_corpus(f"smart-home-{domain}") for domain in DOMAINS]
    assert sorted(u.text for part in parts for u in part.utterances) == sorted(u.text for u in corpus.utterances)
    assert [part.name for part in parts] == [f"smart-home-{domain}" for domain in DOMAINS]
    assert all({u.intent for u in part.utterances} == set(part.intents) for part in parts)


@pytest.mark.parametrize(
    ("call", "culprit"),
    [
        (lambda: generate(0, 0), "0 utterances"),
        (lambda: generate(5, 0, "music"), "'music'"),
        (lambda: generate(5, 0, ""), "''"),
        (lambda: load("music"), "'music'"),
    ],
)
def test_bad_input_names_the_culprit(call, culprit):
    with pytest.raises(UsageError, match=culprit):
        call()


@pytest.mark.parametrize("content", [None, b"", b"not gzip", gzip.compress(b'{"tokens": ["hi"]}\n', mtime=0)])
def test_missing_or_damaged_embedded_file(tmp_path, monkeypatch, content):
    file = tmp_path / "utterances.jsonl.gz"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setattr(smart_home, "EMBEDDED", file)
    with pytest.raises(UsageError, match=r"utterances\.jsonl\.gz"):
        load()
