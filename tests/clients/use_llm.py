"""The command `llm`: a prompt, a conversation, tools, and what it logs."""
# pyright: reportMissingImports=false

import json
import os
import tempfile
from pathlib import Path

from click.testing import CliRunner, Result
from llm.cli import cli
from scenarios import SUM_ANSWER, SUM_QUESTION, WEATHER_QUESTION, WEATHER_RESULT, Server, main, scenario

FUNCTIONS = f"""
def get_weather(city: str) -> str:
    "Get the weather"
    assert city == "Paris"
    return {WEATHER_RESULT!r}
"""
# What a user of a server of their own writes into llm's folder. JSON is YAML.
OPTIONS = {"can_stream": True, "supports_tools": True, "supports_schema": True}
folder = tempfile.TemporaryDirectory()
os.environ["LLM_USER_PATH"] = folder.name


def call(*arguments: str) -> Result:
    """What the command `llm` does, in this process: its start takes seconds."""
    return CliRunner().invoke(cli, arguments)


def ask(server: Server, *arguments: str) -> Result:
    """Runs `llm -m local`, with the server's model under that name."""
    models = [
        {"model_id": "local", "model_name": server.model, "api_base": server.base_url, **OPTIONS},
        {"model_id": "thinking", "model_name": server.model, "api_base": server.base_url, "reasoning": True, **OPTIONS},
        {"model_id": "absent", "model_name": "absent", "api_base": server.base_url, **OPTIONS},
        {"model_id": "text", "model_name": server.model, "api_base": server.base_url, "completion": True},
    ]
    Path(folder.name, "extra-openai-models.yaml").write_text(json.dumps(models))
    return call(*arguments)


def answer(server: Server, *arguments: str) -> str:
    done = ask(server, "-o", "temperature", "0", *arguments)
    assert done.exit_code == 0, done.stderr
    return done.stdout.strip()


@scenario
def models_are_listed(server: Server) -> None:
    done = call("openai", "endpoint", server.base_url, "--models")
    assert done.exit_code == 0, done.stderr
    assert server.model in done.stdout.split()


@scenario
def a_prompt(server: Server) -> None:
    assert answer(server, "-m", "local", SUM_QUESTION) == SUM_ANSWER
    assert answer(server, "-m", "local", "--no-stream", SUM_QUESTION) == SUM_ANSWER
    assert answer(server, "-m", "local", "--async", SUM_QUESTION) == SUM_ANSWER


@scenario
def usage(server: Server) -> None:
    for flags in ((), ("--no-stream",)):
        done = ask(server, "-m", "local", "-o", "temperature", "0", "--usage", *flags, SUM_QUESTION)
        assert done.exit_code == 0, done.stderr
        assert "Token usage: " in done.stderr
        assert " input" in done.stderr
        assert " output" in done.stderr


@scenario
def tool_loop(server: Server) -> None:
    for flags in ((), ("--no-stream",)):
        assert "21" in answer(server, "-m", "local", "--functions", FUNCTIONS, *flags, WEATHER_QUESTION)


@scenario
def a_conversation_goes_on(server: Server) -> None:
    answer(server, "-m", "local", "--functions", FUNCTIONS, WEATHER_QUESTION)
    assert answer(server, "--continue", "What is 3 plus 4?")
    logged = call("logs", "--json", "-n", "0")
    assert logged.exit_code == 0, logged.stderr
    assert "What is 3 plus 4?" in logged.stdout


@scenario
def an_endpoint_without_settings(server: Server) -> None:
    done = call("openai", "endpoint", server.base_url, "--model", server.model, "-o", "temperature", "0", SUM_QUESTION)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.strip() == SUM_ANSWER


@scenario
def reasoning_effort(server: Server) -> None:
    assert "42" in answer(server, "-m", "thinking", "-o", "reasoning_effort", "low", SUM_QUESTION)


@scenario
def structured_answers(server: Server) -> None:
    said = "Write a JSON object with name Anna and seats 4."
    made = json.loads(answer(server, "-m", "local", "--schema", "name, seats int", said))
    assert made == {"name": "Anna", "seats": 4}


@scenario
def completions(server: Server) -> None:
    assert answer(server, "-m", "text", "-o", "max_tokens", "4", "-o", "logprobs", "2", "Hello there")


@scenario
def errors_are_shown(server: Server) -> None:
    done = ask(server, "-m", "absent", "hi")
    assert done.exit_code == 1
    assert "absent" in done.stderr
    done = ask(server, "-m", "local", "-o", "logit_bias", '{"999999": 1}', "hi")
    assert done.exit_code == 1
    assert "logit_bias" in done.stderr


if __name__ == "__main__":
    main()
