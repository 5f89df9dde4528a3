"""JSON lines as a map-style data set: checked in one pass at the start, tokenised row by row when asked for.

Map-style, because skipping ahead on a resume is then free; by byte offset, because a file of millions of rows should
cost neither a start-up of minutes nor its size in memory on every rank.
"""

from __future__ import annotations

import json
import os
import stat
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from .arguments import Arguments, BadInput

IGNORED = -100
"""The label of tokens that are not trained on, as torch's cross entropy and transformers use it."""


class Rows:
    """The rows of one file, each checked; O(1) memory a row (8 bytes), one read for each access.

    Raises BadInput with path and line number when the file is missing or empty, a line is not JSON or is not an
    object of strings with the expected keys, or a text to train on is blank. All rows must be of the same kind: whole
    texts, or prompts with completions.
    """

    def __init__(self, path: str, text: str, prompt: str, completion: str) -> None:
        self.path = path
        self._kinds = ((text,), (prompt, completion))
        self._keys: tuple[str, ...] = ()
        self._starts = array("Q")
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise BadInput(f"--data {path} is not a file")
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            with open(path, "rb") as file:
                self._scan(file)
        except FileNotFoundError:
            raise BadInput(f"--data {path} does not exist") from None
        except OSError as error:
            raise BadInput(f"--data {path} cannot be read: {error.strerror}") from None
        if not self._starts:
            raise BadInput(f"--data {path} is empty: it needs one JSON object a line")

    def _scan(self, file: Any) -> None:
        start = 0
        for number, line in enumerate(file, 1):
            if line.strip():
                row = self._object(line, number)
                keys = self._keys_of(row, number)
                if self._keys and keys != self._keys:
                    raise BadInput(
                        f"{self._at(number)} has {_listed(keys)} where the rows before have {_listed(self._keys)}"
                    )
                self._keys = keys
                for key in keys:
                    if not isinstance(row[key], str):
                        raise BadInput(f"{self._at(number)}: {_listed((key,))} is not a string")
                if not row[keys[-1]].strip():
                    raise BadInput(
                        f"{self._at(number)}: {_listed(keys[-1:])} is blank, there is nothing to learn from it"
                    )
                self._starts.append(start)
            start += len(line)

    def _object(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError:
            raise BadInput(f"{self._at(number)} is not UTF-8") from None
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{self._at(number)} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise BadInput(f"{self._at(number)} is not a JSON object")
        return row

    def _keys_of(self, row: dict[str, Any], number: int) -> tuple[str, ...]:
        for keys in self._kinds:
            if all(key in row for key in keys):
                return keys
        wanted = " nor ".join(_listed(keys) for keys in self._kinds)
        have = _listed(tuple(row)) if row else "nothing"
        raise BadInput(f"{self._at(number)} has neither {wanted}, but {have}")

    def _at(self, number: int) -> str:
        return f"--data {self.path} line {number}"

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> tuple[str, str]:
        """Return prompt and text to train on; the prompt of a whole text is empty."""
        start = self._starts[index]
        parts = []
        # Blank lines may stand before the next row, so its start is no end: the line is read up to its newline.
        while True:
            part = os.pread(self._fd, 1 << 16, start)
            line, newline, _ = part.partition(b"\n")
            parts.append(line)
            start += len(part)
            if newline or not part:
                break
        row = json.loads(b"".join(parts).decode("utf-8-sig"))
        values = [row[key] for key in self._keys]
        return ("", values[0]) if len(values) == 1 else (values[0], values[1])


def rows_of(arguments: Arguments) -> Rows:
    """Open and check the data of a run; raises BadInput."""
    return Rows(arguments.data, arguments.text_field, arguments.prompt_field, arguments.completion_field)


class Tokenised:
    """Rows as token ids: `input_ids` and `labels`, lists of the same length of 2 to `max_length` tokens.

    A prompt is not trained on. What is too long loses its end when it is a whole text, and its beginning when it is
    a prompt with a completion, so that the answer is what stays.
    """

    def __init__(self, rows: Rows, tokenizer: Any, max_length: int) -> None:
        self._rows = rows
        self._tokenizer = tokenizer
        self._max_length = max_length

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        prompt, text = self._rows[index]
        before = self._ids(prompt, special=True) if prompt else []
        after = self._ids(text, special=not prompt)
        end = self._tokenizer.eos_token_id
        if end is not None and after[-1:] != [end]:
            after.append(end)
        ids = before + after
        labels = [IGNORED] * len(before) + after
        keep = slice(-self._max_length, None) if prompt else slice(self._max_length)
        ids, labels = ids[keep], labels[keep]
        if all(label == IGNORED for label in labels[1:]):
            raise BadInput(
                f"--data {self._rows.path} row {index + 1}: the tokenizer leaves nothing to predict"
            )
        return {"input_ids": ids, "labels": labels}

    def _ids(self, text: str, *, special: bool) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
        return list(ids)


def collator(pad_id: int) -> Callable[[Sequence[dict[str, list[int]]]], dict[str, Any]]:
    """Return a function that pads rows on the right to tensors of shape (rows, longest row)."""

    def collate(rows: Sequence[dict[str, list[int]]]) -> dict[str, Any]:
        import torch

        longest = max(len(row["input_ids"]) for row in rows)

        def padded(values: list[list[int]], filler: int) -> Any:
            return torch.tensor([each + [filler] * (longest - len(each)) for each in values])

        return {
            "input_ids": padded([row["input_ids"] for row in rows], pad_id),
            "attention_mask": padded([[1] * len(row["input_ids"]) for row in rows], 0),
            "labels": padded([row["labels"] for row in rows], IGNORED),
        }

    return collate


def _listed(keys: Sequence[str]) -> str:
    return " and ".join(json.dumps(key, ensure_ascii=False) for key in keys)
