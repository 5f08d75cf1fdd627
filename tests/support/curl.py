"""What curl would send, on machines without it: a program that knows the options of the docs.

It sends real requests and is as strict as `curl --fail-with-body`; an option that it does
not know ends it, so that no test passes by it.
"""

import sys
from pathlib import Path

import httpx

SILENT = ("-s", "-S", "-sS", "-N")


def _data(word: str) -> bytes:
    if word == "@-":
        return sys.stdin.buffer.read()
    return Path(word[1:]).read_bytes() if word.startswith("@") else word.encode()


def main(words: list[str]) -> int:
    method, headers, body, output, url = "", {}, None, None, ""
    while words:
        match words.pop(0):
            case "-X":
                method = words.pop(0)
            case "-H":
                name, _, value = words.pop(0).partition(":")
                headers[name] = value.strip()
            case "-d" | "--data-binary":
                body = _data(words.pop(0))
            case "-o":
                output = words.pop(0)
            case word if word in SILENT:
                pass
            case word if word.startswith("-") or url:
                print(f"curl: this one does not know {word}", file=sys.stderr)
                return 2
            case word:
                url = word if "://" in word else f"http://{word}"
    if body is not None:
        headers.setdefault("Content-Type", "application/x-www-form-urlencoded")
    method = method or ("GET" if body is None else "POST")
    with httpx.stream(
        method, url, headers=headers, content=body, timeout=60, trust_env=False
    ) as answer:
        with Path(output).open("wb") if output else open(1, "wb", closefd=False) as out:
            for piece in answer.iter_raw():
                out.write(piece)
                out.flush()
        return 22 if answer.is_error else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
