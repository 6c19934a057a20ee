"""Training: resumed runs go on as if never stopped, the loss falls, and what is written is a Qwen3 for transformers."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from demo_training import checkpoints, tokens, training
from demo_training.export import write_folder
from demo_training.model import MODELS, Shape, Trainee, raw_config
from demo_training.run import Run
from demo_training.template import IM_END
from demo_training.tokenizer import special, train_tokenizer
from demo_training.tokens import batches, document_of, pack
from demo_training.training import Schedule, State, data_from, first_state, step_function, train
from demo_training.validation import exact, sample
from tokenizers import Tokenizer

TINY = Shape(hidden=32, inner=64, layers=2, heads=2, kv_heads=1)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(0, 700, merged=400, samples=400)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "SHAPES", ((4, 128), (2, 256)))
    monkeypatch.setattr(training, "BLOCK", 4)


def tiny(tokenizer: Tokenizer) -> tuple[dict[str, Any], Trainee]:
    raw = raw_config(TINY, tokenizer.get_vocab_size(), special(tokenizer, IM_END))
    return raw, Trainee(raw)


def same(one: State, two: State) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def test_the_rate_rises_stays_and_falls_to_nothing():
    schedule = Schedule(peak=2.0, warm_up=10, decay_from=50, decay_steps=20)
    rates = [schedule.rate(step) for step in range(75)]
    assert rates[:10] == pytest.approx([0.2 * i for i in range(1, 11)])
    assert set(rates[10:50]) == {2.0}
    assert rates[50:71] == pytest.approx([2 - 0.1 * i for i in range(21)])
    assert set(rates[70:]) == {0.0}
    assert Schedule().rate(10**6) == Schedule().peak


@pytest.mark.usefixtures("small")
def test_a_resumed_run_goes_on_as_if_never_stopped(tokenizer: Tokenizer, tmp_path: Path):
    _, trainee = tiny(tokenizer)
    step, schedule = step_function(trainee), Schedule(warm_up=3)
    whole, losses, _ = train(step, first_state(trainee, 0), data_from(tokenizer, 0, 0), schedule, 8)
    half, first, _ = train(step, first_state(trainee, 0), data_from(tokenizer, 0, 0), schedule, 4)
    checkpoints.save(tmp_path, half)
    path = checkpoints.newest(tmp_path)
    assert path is not None
    loaded = checkpoints.load(path, first_state(trainee, 1))
    assert same(loaded, half)
    assert loaded.step == 4
    resumed, second, _ = train(step, loaded, data_from(tokenizer, 0, 4), schedule, 4)
    assert first + second == losses
    assert same(resumed, whole)
    assert losses[-1] < losses[0]


def test_a_decay_that_was_begun_goes_on(tokenizer: Tokenizer, tmp_path: Path):
    raw, trainee = tiny(tokenizer)
    run, state = Run(tmp_path, "tiny", 0, tokenizer, raw, trainee), first_state(trainee, 0)
    assert run.schedule(state, 1.0, 0).last is None
    begun = run.schedule(state._replace(step=100), 1.0, 50)
    assert (begun.decay_from, begun.last) == (100, 150)
    assert run.schedule(state._replace(step=120), 1.0, 0) == begun
    assert run.schedule(state._replace(step=150), 1.0, 0) == Schedule(peak=1.0)


def test_only_the_newest_checkpoints_are_kept(tokenizer: Tokenizer, tmp_path: Path):
    state = first_state(tiny(tokenizer)[1], 0)
    for step in (1, 2, 3, 4, 10):
        checkpoints.save(tmp_path, state._replace(step=step))
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step_0000003", "step_0000004", "step_0000010"]
    assert checkpoints.newest(tmp_path / "none") is None


def test_documents_of_a_row_do_not_see_each_other(tokenizer: Tokenizer):
    _, trainee = tiny(tokenizer)
    params = trainee.init(0)
    one, two = (pack([row], 256) for row in _rows(tokenizer))
    count = int(one.weights.sum())
    alone = np.asarray(trainee.scored(params, one))[:count]
    start = int(two.weights.sum()) - count
    together = np.asarray(trainee.scored(params, two))[start : start + count]
    np.testing.assert_allclose(together, alone, atol=1e-5)


def _rows(tokenizer: Tokenizer) -> list[list[tokens.Document]]:
    from demo_data import Conversation, Message

    first, second = (
        document_of(tokenizer, Conversation("", (), (Message("user", ask), Message("assistant", "7."))))
        for ask in ("Something else", "3 + 4")
    )
    return [[second], [first, second]]


def test_quick_looks_count_whole_answers(tokenizer: Tokenizer):
    _, trainee = tiny(tokenizer)
    looked = sample(tokenizer, 0, each=2)
    shares = exact(trainee, trainee.init(0), looked)
    assert set(shares) == set(looked.kinds)
    assert set(shares.values()) == {0.0}


@pytest.mark.parametrize(("model", "low", "high"), [("target", 3.0, 6.0), ("draft", 0.3, 0.7)])
def test_sizes_are_those_that_were_asked_for(model: str, low: float, high: float):
    trainee = Trainee(raw_config(MODELS[model], 2560, 2))
    assert low <= sum(x.size for x in jax.tree.leaves(jax.eval_shape(trainee.init, 0))) / 1e6 <= high


@pytest.mark.long
def test_training_lowers_the_loss(tokenizer: Tokenizer):
    _, trainee = tiny(tokenizer)
    held_out = next(batches(tokenizer, "held out"))
    state = first_state(trainee, 0)
    before = float(trainee.loss(state.params, held_out))
    state, _, _ = train(step_function(trainee), state, data_from(tokenizer, 0, 0), Schedule(warm_up=20), 60)
    assert before == pytest.approx(np.log(700), abs=0.5)
    assert float(trainee.loss(state.params, held_out)) < before - 2


@pytest.mark.parity
def test_the_folder_gives_the_same_logits_in_transformers(tokenizer: Tokenizer, tmp_path: Path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    raw, trainee = tiny(tokenizer)
    params = jax.tree.map(lambda x: (x * 1.5).astype(jnp.bfloat16).astype(jnp.float32), trainee.init(0))
    write_folder(tmp_path, raw, params, tokenizer)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    ids = np.random.default_rng(0).integers(0, 700, (2, 50))
    with torch.no_grad():
        expected = model(torch.tensor(ids)).logits.numpy()
    np.testing.assert_allclose(trainee.logits(params, jnp.asarray(ids)), expected, atol=1e-4)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "<|im_start|>user\n12 zebra<|im_end|>\n<tool_call>"
    assert theirs(text, add_special_tokens=False).input_ids == tokenizer.encode(text, add_special_tokens=False).ids
