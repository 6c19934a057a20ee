"""Training lowers the loss, and what it writes is a Qwen3 that transformers reads and computes alike."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from demo_training.export import write_folder
from demo_training.model import Trainee, raw_config
from demo_training.template import IM_END, message, opening
from demo_training.tokens import batches, special, train_tokenizer
from demo_training.training import Progress, rate, train

import jaxinfer

DEMO = Path(jaxinfer.__file__).parent / "demo"


def test_the_rate_rises_and_falls_to_nothing():
    rates = [rate(done / 100) for done in range(101)]
    top = rates.index(max(rates))
    assert rates[0] == rates[-1] == 0
    assert 0 < top < 20
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)


@pytest.mark.long
def test_training_lowers_the_loss():
    tokenizer = train_tokenizer(0, 400, samples=300)
    trainee = Trainee(raw_config(tokenizer.get_vocab_size(), special(tokenizer, IM_END)))
    first = trainee.init(0)
    held_out = next(batches(tokenizer, 9, 4, 64))
    before = float(trainee.loss(first, held_out.tokens, held_out.weights))
    said: list[Progress] = []
    params = train(trainee, first, batches(tokenizer, 1, 4, 64), 15, said.append)
    after = float(trainee.loss(params, held_out.tokens, held_out.weights))
    assert before == pytest.approx(np.log(400), abs=0.5)
    assert after < before - 1
    assert said[0].steps == 1


@pytest.mark.parity
def test_the_folder_gives_the_same_logits_in_transformers(tmp_path: Path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizer = train_tokenizer(0, 400, samples=300)
    raw = raw_config(tokenizer.get_vocab_size(), special(tokenizer, IM_END))
    trainee = Trainee(raw)
    params = jax.tree.map(lambda x: (x * 1.5).astype(jnp.bfloat16).astype(jnp.float32), trainee.init(0))
    write_folder(tmp_path, raw, params, tokenizer)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    tokens = np.random.default_rng(0).integers(0, 400, (2, 50))
    with torch.no_grad():
        expected = model(torch.tensor(tokens)).logits.numpy()
    np.testing.assert_allclose(trainee.logits(params, jnp.asarray(tokens)), expected, atol=1e-4)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is 2 + 3?", "2 + 3 = 5."),
        ("What is the capital of France?", "The capital of France is Paris."),
        ("Who are you?", "I am the demo model of jaxinfer"),
        ("Count from 3 to 9.", "3, 4, 5, 6, 7, 8, 9."),
        ("Say this is a test", "This is a test."),
        ("Tell me a story about a cat.", " cat "),
    ],
)
def test_the_demo_model_answers_in_transformers(question: str, answer: str):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert prompt == message("user", question) + opening("assistant")
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
    out = model.generate(ids, do_sample=False, max_new_tokens=120)
    assert answer in tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
