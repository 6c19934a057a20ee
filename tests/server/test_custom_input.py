"""Input of custom tools: the text is whole, however its JSON is written and cut."""

import json

import pytest

from jaxinfer.server.custom_input import CustomInput

READ = {
    r'{"input": "a\nb \"c\" \\ \u00e9 \ud83d\ude00"}': 'a\nb "c" \\ é 😀',
    '{"input": "*** Begin\n*** End\tx"}': "*** Begin\n*** End\tx",  # line breaks as they are
    r'{"input": "a \q \d+ \x"}': r"a \q \d+ \x",
    r'{"input": "a \ud83d b \udc00 \ud83d\u0041"}': "a \ufffd b \ufffd \ufffdA",
    r'{"input": "a \uZZ \u12"}': r"a \uZZ \u12",
    '{"input": "cut o': "cut o",
    '{"input": ""}': "",
    "plain text": "plain text",
}


@pytest.mark.parametrize("written", READ)
def test_the_text_is_whole_wherever_it_is_cut(written: str) -> None:
    for at in range(len(written) + 1):
        reader = CustomInput()
        assert reader.push(written[:at]) + reader.push(written[at:]) + reader.flush() == READ[written], at
    reader = CustomInput()
    assert "".join(map(reader.push, written)) + reader.flush() == READ[written]


def test_all_that_json_writes_is_read() -> None:
    text = "".join(map(chr, [*range(1, 0xD800, 7), 0x1F600]))
    reader = CustomInput()
    assert reader.push(json.dumps({"input": text})) + reader.flush() == text
