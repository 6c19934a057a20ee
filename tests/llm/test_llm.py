"""LLM and AsyncLLM over the simulated device: prompts, parameters, results, ends."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jaxinfer
from jaxinfer import LLM, AsyncLLM, Constraint, SamplingParams
from jaxinfer.errors import JaxinferError, ParameterError
from jaxinfer.llm import RequestOutput
from jaxinfer.text import Tokenizer
from tests.llm import simulated
from tests.text.folders import byte_level_folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("jaxinfer.build.build_engine", simulated.build_engine)
    monkeypatch.setattr("jaxinfer.build.folders.model_folder", simulated.model_folder)
    return byte_level_folder(tmp_path)


@pytest.fixture
def make(folder: Path) -> Iterator[Callable[..., LLM]]:
    made: list[LLM] = []

    def new(**flags: Any) -> LLM:
        made.append(LLM(str(folder), **flags))
        return made[-1]

    yield new
    for llm in made:
        llm.close()


def right(llm: LLM, prompt: str, count: int, **named: int) -> tuple[list[int], str]:
    ids = simulated.right_tokens(llm.get_tokenizer().encode(prompt), count, **named)
    return ids, llm.get_tokenizer().decode(ids)


@pytest.mark.smoke
def test_results_stand_in_the_order_of_the_prompts(make) -> None:
    llm = make()
    lengths = [9, 3, 6]
    params = [SamplingParams(max_tokens=length, seed=5) for length in lengths]
    results = llm.generate(["hello", "b", "hello w"], params)
    for result, prompt, length in zip(results, ["hello", "b", "hello w"], lengths, strict=True):
        ids, text = right(llm, prompt, length, seed=5)
        assert (result.prompt, result.prompt_token_ids) == (prompt, llm.get_tokenizer().encode(prompt))
        assert (result.outputs[0].token_ids, result.outputs[0].text) == (ids, text)
        assert (result.outputs[0].finish_reason, result.finished) == ("length", True)
    assert not llm.engine.has_work()
    assert llm.engine.stats().kv.blocks_used == 0


def test_prompts_are_texts_or_token_ids_one_or_many(make) -> None:
    llm = make()
    params = SamplingParams(max_tokens=2, seed=1)
    forms: list[Any] = ["ab", {"prompt": "ab"}, {"prompt_token_ids": llm.get_tokenizer().encode("ab")}]
    outputs = [llm.generate(form, params)[0] for form in forms] + llm.generate(forms, params)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert [output.prompt for output in outputs] == ["ab", "ab", None] * 2
    assert llm.generate([], params) == []


def test_choices_are_numbered_and_drawn_apart(make) -> None:
    llm = make()
    output = llm.generate("ab", SamplingParams(n=3, max_tokens=4, seed=2))[0]
    assert [choice.index for choice in output.outputs] == [0, 1, 2]
    for choice in output.outputs:
        assert choice.token_ids == right(llm, "ab", 4, seed=2, index=choice.index)[0]


def test_more_prompts_than_may_wait_are_fed_bit_by_bit(make) -> None:
    llm = make(max_waiting=2, max_num_seqs=2)
    results = llm.generate(["hello"] * 20, SamplingParams(max_tokens=3, seed=9))
    assert [result.outputs[0].token_ids for result in results] == [right(llm, "hello", 3, seed=9)[0]] * 20


def test_a_stop_string_cuts_the_text_and_frees_the_blocks(make) -> None:
    llm = make()
    ids, text = right(llm, "hello", 30, seed=3)
    at = next(i for i in range(4, 20) if "\ufffd" not in text[i : i + 2])
    stop = text[at : at + 2]
    output = llm.generate("hello", SamplingParams(max_tokens=30, seed=3, stop=(stop,)))[0].outputs[0]
    assert output.text == text[: text.index(stop)]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)
    assert output.token_ids == ids[: len(output.token_ids)]
    assert len(output.token_ids) < 30
    assert llm.engine.stats().core.generation_tokens < 30
    assert llm.engine.stats().scheduler.running == 0


def test_a_stop_token_ends_the_text_before_it(make) -> None:
    llm = make()
    ids, _ = right(llm, "hello", 10, seed=3)
    output = llm.generate("hello", SamplingParams(max_tokens=10, seed=3, stop_token_ids=(ids[4],)))[0].outputs[0]
    end = ids.index(ids[4])
    assert output.token_ids == ids[: end + 1]
    assert output.text == llm.get_tokenizer().decode(ids[:end])
    assert (output.finish_reason, output.stop_reason) == ("stop", ids[4])


def test_logprobs_have_vllms_shape(make) -> None:
    llm = make()
    output = llm.generate("hello", SamplingParams(max_tokens=3, seed=3, logprobs=2, prompt_logprobs=1))[0]
    choice = output.outputs[0]
    assert choice.logprobs is not None
    assert [next(iter(entry)) for entry in choice.logprobs] == choice.token_ids
    first = choice.logprobs[0][choice.token_ids[0]]
    assert first.decoded_token == llm.get_tokenizer().token_text(choice.token_ids[0])
    total = sum(entry[token].logprob for entry, token in zip(choice.logprobs, choice.token_ids, strict=True))
    assert choice.cumulative_logprob == pytest.approx(total)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)


@pytest.mark.long
def test_a_chats_answer_is_taken_apart() -> None:
    """By the demo model, which calls tools and thinks."""
    llm = LLM("demo", max_num_seqs=2, compile="lazy")
    try:
        greedy = SamplingParams(temperature=0, max_tokens=120)
        weather = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        function = {"name": "get_weather", "description": "Get the weather", "parameters": weather}
        ask = [{"role": "user", "content": "What is the weather in Paris?"}]
        (output,) = llm.chat(ask, greedy, tools=[{"type": "function", "function": function}])[0].outputs
        assert output.parsed is not None
        (call,) = output.parsed.tool_calls
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
        assert (output.parsed.content, "<tool_call>" in output.text) == ("", True)
        number: Any = {"json": {"type": "integer"}}
        constrained = SamplingParams(temperature=0, max_tokens=120, structured_outputs=number)
        (output,) = llm.chat(ask, constrained, tools=[{"type": "function", "function": function}])[0].outputs
        assert output.parsed is not None
        assert [each.name for each in output.parsed.tool_calls] == ["get_weather"]
        ask = [{"role": "user", "content": "What is 3 plus 4?"}]
        (output,) = llm.chat(ask, constrained, chat_template_kwargs={"enable_thinking": True})[0].outputs
        assert output.parsed is not None
        assert output.parsed.reasoning
        assert isinstance(json.loads(output.parsed.content), int)
        (output,) = llm.chat(ask, greedy, chat_template_kwargs={"enable_thinking": True})[0].outputs
        assert output.parsed is not None
        assert output.parsed.reasoning
        assert "7" in output.parsed.content
        assert "think" not in output.parsed.content
        assert llm.generate("Once", greedy)[0].outputs[0].parsed is None
    finally:
        llm.close()


def test_an_n_above_the_slots_runs_in_turns(make) -> None:
    output = make(max_num_seqs=2).generate("hello", SamplingParams(max_tokens=5, n=7, seed=3, ignore_eos=True))[0]
    assert [len(each.token_ids) for each in output.outputs] == [5] * 7
    alone = make(max_num_seqs=8).generate("hello", SamplingParams(max_tokens=5, n=7, seed=3, ignore_eos=True))[0]
    assert [each.token_ids for each in output.outputs] == [each.token_ids for each in alone.outputs]


def test_parameters_take_what_a_text_must_be_in_the_servers_form() -> None:
    schema = {"type": "object", "properties": {}}
    for given, same in (
        ({"json": schema}, Constraint.schema(schema)),
        ({"json": json.dumps(schema), "disable_any_whitespace": True}, Constraint.schema(schema).with_whitespace("")),
        ({"regex": "a+"}, Constraint.text("regex", "a+")),
        ({"choice": ["a", "b"]}, Constraint.choice(["a", "b"])),
        ({"json_object": True}, Constraint("json_object")),
    ):
        assert SamplingParams(structured_outputs=given).structured_outputs == same  # pyright: ignore
    for wrong, words in (({"xml": 1}, "xml: is not supported"), ({}, "has 0 of"), ({"regex": ""}, "must be a string")):
        with pytest.raises(ParameterError, match=f"structured_outputs.*{words}"):
            SamplingParams(structured_outputs=wrong)  # pyright: ignore


def test_predictions_change_the_number_of_steps_alone(make, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated.draft_always(monkeypatch)
    llm, plain = make(speculative_config='{"method": "ngram"}'), make()
    params = SamplingParams(max_tokens=30, seed=5)
    ids = llm.get_tokenizer().encode("hello", add_special_tokens=False, parse_special=False)
    (wanted,) = plain.generate("ab", params)
    for prediction in ("hello", ids, tuple(ids)):
        (found,) = llm.generate({"prompt": "ab", "prediction": prediction}, params)
        assert found.outputs == wanted.outputs
        assert found.num_accepted_prediction_tokens > 0
        assert found.num_rejected_prediction_tokens > 0
    stats = llm.engine.stats()
    assert stats.drafts.accepted_tokens >= 3 * found.num_accepted_prediction_tokens > 0
    (answer,) = llm.chat([{"role": "user", "content": "ab"}], params, prediction="hello")
    (unpredicted,) = llm.chat([{"role": "user", "content": "ab"}], params)
    assert answer.outputs == unpredicted.outputs
    assert answer.num_accepted_prediction_tokens > unpredicted.num_accepted_prediction_tokens == 0


@pytest.mark.parametrize(
    ("prediction", "param"), [(5, "prompts.prediction"), (["a"], "prompts.prediction"), ([10**6], "prediction")]
)
def test_a_wrong_prediction_is_refused(make, prediction: Any, param: str) -> None:
    llm = make(speculative_config='{"method": "ngram"}')
    with pytest.raises(ParameterError) as caught:
        llm.generate({"prompt": "ab", "prediction": prediction})
    assert caught.value.param == param


def test_a_prediction_needs_speculation(make) -> None:
    with pytest.raises(ParameterError, match="--speculative-config") as caught:
        make().generate({"prompt": "ab", "prediction": "hello"})
    assert caught.value.param == "prediction"


def test_chat_renders_the_template(make) -> None:
    llm = make()
    talk = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    params = SamplingParams(max_tokens=2, seed=1)
    one = llm.chat(talk, params)[0]
    assert one.prompt == "<|user|>hi<|end|><|assistant|>"
    assert llm.get_tokenizer().decode(one.prompt_token_ids, skip_special_tokens=False) == one.prompt
    many = llm.chat([talk, talk], params, chat_template_kwargs={"style": "x"}, add_generation_prompt=False)
    assert [output.prompt for output in many] == ["<|user|>hi<|end|>x"] * 2


def test_a_chat_in_channels_keeps_their_tags_in_the_text(make, folder: Path) -> None:
    """With a seed by which the simulated device draws a special token."""
    byte_level_folder(folder, chat_template="{# <|channel|>final<|message|> #}{{ messages[0].content }}")
    llm = make()
    params = SamplingParams(max_tokens=40, seed=3)
    (output,) = llm.chat([{"role": "user", "content": "hi"}], params)[0].outputs
    assert output.text == llm.get_tokenizer().decode(output.token_ids, skip_special_tokens=False)
    assert output.parsed is not None
    assert output.parsed.content
    (plain,) = llm.generate("hi", params)[0].outputs
    assert plain.token_ids == output.token_ids
    assert set(plain.token_ids) & llm.get_tokenizer().special_ids
    assert len(plain.text) < len(output.text)


def test_a_stream_that_is_left_frees_its_request(make) -> None:
    llm = make()
    stream = llm.stream("hello", SamplingParams(max_tokens=50, seed=3))
    next(stream)
    assert llm.engine.has_work()
    stream.close()
    assert not llm.engine.has_work()
    assert llm.engine.stats().core.generation_tokens < 10
    assert llm.engine.stats().kv.blocks_used == 0


def test_nothing_else_runs_while_a_stream_is_open(make) -> None:
    llm = make()
    stream = llm.stream("hello", SamplingParams(max_tokens=20, seed=3))
    shown = [next(stream)]
    with pytest.raises(JaxinferError, match="a stream of this LLM is open"):
        llm.generate("b", SamplingParams(max_tokens=2))
    shown += stream
    assert "".join(delta.text for delta in shown) == right(llm, "hello", 20, seed=3)[1]
    assert llm.generate("b", SamplingParams(max_tokens=2))[0].finished


def test_a_stream_joins_to_the_whole_text(make) -> None:
    llm = make()
    shown = list(llm.stream("hello", SamplingParams(max_tokens=20, seed=3)))
    assert "".join(delta.text for delta in shown) == right(llm, "hello", 20, seed=3)[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max_num_seq": 4}, "max_num_seq: is no setting; did you mean max_num_seqs"),
        ({"max_num_seqs": "4"}, "max_num_seqs: '4' is neither a number nor auto"),
        ({"max_num_seqs": 0}, "max_num_seqs: 0 must be at least 1"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching: Expected `bool`"),
        ({"quantization": "gptq"}, "fp8-w8a8; a checkpoint in this form needs no flag"),
        ({"dtype": "int3"}, "dtype: 'int3' is not one of auto, bfloat16, float16, float32"),
        ({"cache": {"blocksize": 4}}, "blocksize: is no setting; did you mean block_size"),
        ({"cache": 5}, "cache: must be a mapping"),
    ],
)
def test_a_wrong_setting_is_named(folder: Path, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError) as error:
        LLM(str(folder), **flags)
    assert message in str(error.value)


def test_a_context_that_cannot_be_is_refused_before_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*arguments: object, **named: object) -> None:
        pytest.fail("weights were read")

    monkeypatch.setattr("jaxinfer.models.loaded.load_model", load)
    with pytest.raises(ParameterError, match="max_model_len: 99999 is more than the model's"):
        LLM("demo", max_model_len=99999, compile_cache_dir="off")


@pytest.mark.parametrize(
    ("prompts", "param"),
    [
        ("", "prompt"),
        (5, "prompts"),
        (None, "prompts"),
        ([[1, 2]], "prompts"),
        ({"prompt_token_ids": [1.5]}, "prompts.prompt_token_ids"),
        ({"prompt_token_ids": [simulated.VOCAB]}, "prompt"),
        ({"prompt": "a", "multi_modal_data": {}}, "prompts.multi_modal_data"),
        (["a", {"nothing": 1}], "prompts[1].nothing"),
    ],
)
def test_a_wrong_prompt_is_refused_before_anything_runs(make, prompts: Any, param: str | None) -> None:
    llm = make()
    with pytest.raises((ParameterError, TypeError)) as error:
        llm.generate(prompts, SamplingParams(max_tokens=1))
    assert getattr(error.value, "param", None) == param
    assert not llm.engine.has_work()


def test_parameters_must_be_as_many_as_prompts(make) -> None:
    with pytest.raises(ParameterError, match="sampling_params: has 1 entries for 2 prompts"):
        make().generate(["a", "b"], [SamplingParams()])


def test_defaults_come_from_generation_config(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"temperature": 0.5, "max_new_tokens": 3}')
    llm = LLM(str(folder))
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.5, max_tokens=3)
    assert len(llm.generate("a")[0].outputs[0].token_ids) == 3
    llm.close()


def test_the_public_names() -> None:
    assert jaxinfer.LLM is LLM
    assert jaxinfer.AsyncLLM is AsyncLLM


async def collect(llm: AsyncLLM, prompt: Any, params: SamplingParams) -> list[RequestOutput]:
    return [output async for output in llm.generate(prompt, params)]


async def test_async_outputs_are_cumulative(folder: Path) -> None:
    llm = AsyncLLM(str(folder))
    outputs = await collect(llm, "hello", SamplingParams(max_tokens=8, seed=4))
    ids = simulated.right_tokens(llm.text.tokenizer.encode("hello"), 8, seed=4)
    # What came while the reader was busy comes together.
    made = [output.outputs[0].token_ids for output in outputs]
    assert made == [ids[: len(own)] for own in made]
    assert sorted({len(own) for own in made}) == [len(own) for own in made]
    assert made[-1] == ids
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    await llm.close()


async def test_bad_words_become_tokens_in_both_apis(folder: Path) -> None:
    """Of a word alone `allowed_token_ids` leave nothing, which is told before anything runs."""
    tokenizer = Tokenizer(folder)
    (word,), (other,) = (tokenizer.encode(text, add_special_tokens=False) for text in ("hello", "x"))
    params = SamplingParams(max_tokens=9, seed=4, ignore_eos=True, allowed_token_ids=[word, other], bad_words=["hello"])
    never = SamplingParams(allowed_token_ids=[word], bad_words=["hello"])
    llm = LLM(str(folder))
    assert [output.outputs[0].token_ids for output in llm.generate(["a", "b"], params)] == [[other] * 9] * 2
    with pytest.raises(ParameterError, match="bad_words: allowed_token_ids and bad_words leave no token"):
        llm.generate("a", never)
    llm.close()
    beside = AsyncLLM(str(folder))
    assert (await collect(beside, "a", params))[-1].outputs[0].token_ids == [other] * 9
    with pytest.raises(ParameterError, match="bad_words: allowed_token_ids and bad_words leave no token"):
        await collect(beside, "a", never)
    await beside.close()


async def test_async_abort_and_leaving_early_free_the_request(folder: Path) -> None:
    llm = AsyncLLM(str(folder), max_model_len=4000, num_blocks=200)
    params = SamplingParams(max_tokens=700, seed=4, ignore_eos=True)
    outputs = []
    async for output in llm.generate("hello", params, "mine"):
        outputs.append(output)
        await llm.abort("mine")
    assert outputs[-1].outputs[0].finish_reason == "abort"
    stream = llm.generate("hello", params, "other")
    await anext(stream)
    await stream.aclose()  # pyright: ignore[reportAttributeAccessIssue]
    again = await collect(llm, "hello", SamplingParams(max_tokens=2, seed=4))
    assert again[-1].finished
    assert llm.client.stats().scheduler.running == 0
    await llm.close()


async def test_async_stop_strings(folder: Path) -> None:
    llm = AsyncLLM(str(folder))
    ids = simulated.right_tokens(llm.text.tokenizer.encode("hello"), 30, seed=3)
    text = llm.text.tokenizer.decode(ids)
    at = next(i for i in range(4, 20) if "\ufffd" not in text[i : i + 2])
    params = SamplingParams(max_tokens=30, seed=3, stop=(text[at : at + 2],))
    last = (await collect(llm, "hello", params))[-1].outputs[0]
    assert last.text == text[: text.index(text[at : at + 2])]
    await llm.close()


async def test_a_long_prompt_is_tokenised_off_the_event_loop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = AsyncLLM(str(folder), max_model_len=8000)
    threads, encode = [], llm.text.tokenizer.encode

    def seen(text: str, **options: Any) -> list[int]:
        threads.append(threading.current_thread())
        return encode(text, **options)

    monkeypatch.setattr(llm.text.tokenizer, "encode", seen)
    for prompt in ("a" * 5000, {"prompt": "a" * 5000}, "a"):
        with contextlib.suppress(ParameterError):
            await collect(llm, prompt, SamplingParams(max_tokens=1))
    assert [thread is threading.main_thread() for thread in threads] == [False, False, True]
    await llm.close()
