"""JSON lines for the trainer: bad lines are named, rows are found again, the right tokens are trained on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspool.trainer.arguments import BadInput
from gpuspool.trainer.data import IGNORED, Rows, Tokenised, collator


class Bytes:
    """A tokenizer with one token a byte, 256 for the beginning and 257 for the end."""

    def __init__(self, end: int | None = 257) -> None:
        self.eos_token_id = end

    def __call__(self, text: str, *, add_special_tokens: bool, verbose: bool) -> dict[str, Any]:
        return {"input_ids": [256] * add_special_tokens + list(text.encode())}


def rows(path: Path, content: str | bytes) -> Rows:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return Rows(str(path), "text", "prompt", "completion")


def test_rows_by_number_with_blank_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    found = rows(
        tmp_path / "größe d.jsonl",
        b'\xef\xbb\xbf{"text": "a"}\n\n  \n{"text": "\xc3\xa4", "x": 1}\r\n{"text": "c"}',
    )
    assert [found[index] for index in range(len(found))] == [("", "a"), ("", "ä"), ("", "c")]


def test_long_rows(tmp_path: Path) -> None:
    texts = ["x" * 200_000, "y", "z" * 65_536]
    found = rows(tmp_path / "d", "".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert [found[index][1] for index in (2, 0, 1)] == [texts[2], texts[0], texts[1]]


@given(texts=st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=6))
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("data") / "d"
    found = rows(path, "".join(json.dumps({"prompt": text, "completion": text}) + "\n" for text in texts))
    assert [found[index] for index in range(len(found))] == [(text, text) for text in texts]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b'{"text": "a"}\n\n{"text": "b"', "line 3 is not JSON: Expecting"),
        (b'{"text": "a"}\n["b"]\n', "line 2 is not a JSON object"),
        (
            b'{"text": "a"}\n{"txt": "b"}\n',
            'line 2 has neither "text" nor "prompt" and "completion", but "txt"',
        ),
        (b'{"prompt": "a"}\n', 'line 1 has neither "text" nor "prompt" and "completion", but "prompt"'),
        (b"{}\n", "line 1 has neither"),
        (b'{"text": 1}\n', 'line 1: "text" is not a string'),
        (b'{"prompt": null, "completion": "b"}\n', 'line 1: "prompt" is not a string'),
        (b'{"text": " "}\n', 'line 1: "text" is blank'),
        (b'{"prompt": "a", "completion": ""}\n', 'line 1: "completion" is blank'),
        (
            b'{"text": "a"}\n{"prompt": "a", "completion": "b"}\n',
            'line 2 has "prompt" and "completion" where',
        ),
        (b'{"text": "\xff"}\n', "line 1 is not UTF-8"),
        (b"[" * 100_000, "line 1 is not JSON"),
    ],
)
def test_bad_data_names_the_line(tmp_path: Path, content: bytes, expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        rows(tmp_path / "d.jsonl", content)
    assert expected in str(caught.value)
    assert str(tmp_path / "d.jsonl") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        Rows(str(tmp_path / "none"), "text", "prompt", "completion")
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo"):
        with pytest.raises(BadInput, match="is not a file"):
            Rows(str(path), "text", "prompt", "completion")


def test_other_keys(tmp_path: Path) -> None:
    (tmp_path / "d").write_text('{"question": "a", "answer": "b"}\n')
    assert Rows(str(tmp_path / "d"), "text", "question", "answer")[0] == ("a", "b")


def test_a_text_is_trained_on_and_loses_its_end(tmp_path: Path) -> None:
    found = rows(tmp_path / "d", '{"text": "abc"}\n')
    ids = [256, 97, 98, 99, 257]
    assert Tokenised(found, Bytes(), 9)[0] == {"input_ids": ids, "labels": ids}
    assert Tokenised(found, Bytes(), 3)[0] == {"input_ids": ids[:3], "labels": ids[:3]}


def test_a_prompt_is_not_trained_on_and_loses_its_beginning(tmp_path: Path) -> None:
    found = rows(tmp_path / "d", '{"prompt": "ab", "completion": "c"}\n')
    assert Tokenised(found, Bytes(), 9)[0] == {
        "input_ids": [256, 97, 98, 99, 257],
        "labels": [IGNORED, IGNORED, IGNORED, 99, 257],
    }
    assert Tokenised(found, Bytes(), 3)[0] == {"input_ids": [98, 99, 257], "labels": [IGNORED, 99, 257]}
    # An empty prompt is no error: the completion begins the text.
    found = rows(tmp_path / "d", '{"prompt": "", "completion": "c"}\n')
    assert Tokenised(found, Bytes(), 9)[0]["labels"] == [256, 99, 257]


def test_a_row_without_anything_to_predict_is_named(tmp_path: Path) -> None:
    class Nothing(Bytes):
        def __call__(self, text: str, *, add_special_tokens: bool, verbose: bool) -> dict[str, Any]:
            return {"input_ids": []}

    found = rows(tmp_path / "d", '{"text": "a"}\n')
    with pytest.raises(BadInput, match="row 1: the tokenizer leaves nothing to predict"):
        Tokenised(found, Nothing(None), 9)[0]


@pytest.mark.torch
def test_batches_are_padded_on_the_right() -> None:
    pytest.importorskip("torch")
    batch = collator(7)(
        [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}, {"input_ids": [4, 5], "labels": [IGNORED, 5]}]
    )
    assert {key: value.tolist() for key, value in batch.items()} == {
        "input_ids": [[1, 2, 3], [4, 5, 7]],
        "attention_mask": [[1, 1, 1], [1, 1, 0]],
        "labels": [[1, 2, 3], [IGNORED, 5, IGNORED]],
    }
