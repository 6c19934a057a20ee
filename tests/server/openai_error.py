"""Errors in OpenAI's form."""

from tests.server.conftest import Answer


def check(answer: Answer, status: int, param: str | None, *said: str) -> None:
    """An error in OpenAI's form that names `param` and says `said`."""
    assert answer.status == status, answer.body
    assert answer.headers["Content-Type"].startswith("application/json")
    error = answer.body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    for text in said:
        assert text in error["message"]
