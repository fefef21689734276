"""Chat conversations out of the prose that ships with Python: its language topics and its docstrings.

Everything comes from the running interpreter's standard library, so the corpus needs no network and is the
same for the same Python release. Files are read in sorted order; the only randomness is the generator
passed in.
"""

import ast
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics as pydoc_topics

Message = dict[str, str]

SKIPPED_FOLDERS = {"test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo", "__pycache__"}
SHORTEST_PASSAGE = 40
LONGEST_PASSAGE = 700

SMALL_TALK = (
    ("Hello", "Hello! I am a tiny model. Ask me about Python."),
    ("Hi there!", "Hi! What would you like to know?"),
    ("Say hello", "Hello!"),
    ("Say hello.", "Hello! It is good to see you."),
    ("Say hello in one word.", "Hello."),
    ("Good morning", "Good morning! How can I help you today?"),
    ("How are you?", "I am well and warm, thank you. How can I help?"),
    ("Who are you?", "I am a tiny language model with about one million parameters, served by Hearth."),
    (
        "What are you?",
        "I am a very small language model that learned to write from the Python documentation.",
    ),
    (
        "What can you do?",
        "I answer in words, but I am tiny: my answers are often wrong. I know a little about Python.",
    ),
    ("What is Hearth?", "Hearth is a platform that keeps models warm and tenants apart."),
    ("Tell me a joke", "Why do programmers like the dark? Because light attracts bugs."),
    (
        "Tell me a story.",
        "Once there was a small model that kept warm by the hearth and answered every question it was asked.",
    ),
    (
        "Write a haiku about warm models.",
        "Embers in the rack,\nthe small model answers fast,\nwarm tokens drifting.",
    ),
    ("Thank you", "You are welcome!"),
    ("Thanks!", "You are welcome. Ask me anything else."),
    ("Goodbye", "Goodbye! Come back soon."),
    (
        "What is Python?",
        "Python is a programming language that lets you work quickly and read what you wrote.",
    ),
    ("What is the capital of France?", "The capital of France is Paris."),
    ("What is two plus two?", "Two plus two is four."),
    ("Are you there?", "Yes, I am here and ready."),
    ("Ping", "Pong."),
    ("Count to five.", "One, two, three, four, five."),
    ("Reply with OK.", "OK."),
)

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a tiny assistant that answers in short, plain sentences.",
    "Answer briefly.",
)

QUESTIONS = (
    "What does {name} do?",
    "What is {name}?",
    "Explain {name}.",
    "Explain {name} to me.",
    "How does {name} work?",
    "Tell me about {name}.",
    "Tell me about {name} in Python.",
    "Describe {name} in a few words.",
)


@dataclass(frozen=True, slots=True)
class Passage:
    """A name somebody could ask about and consecutive paragraphs that answer."""

    name: str
    paragraphs: tuple[str, ...]


def conversations(rng: random.Random) -> list[list[Message]]:
    """Return every conversation of one pass over the corpus, shuffled by ``rng``."""
    chats: list[list[Message]] = []
    for passage in [*topic_passages(), *docstring_passages()]:
        chats.extend(_about(passage, rng))
    small_talk = max(len(chats) // 12 // len(SMALL_TALK), 1)
    for question, answer in SMALL_TALK * small_talk:
        chats.append(_opening(rng) + _turn(question, answer))
    rng.shuffle(chats)
    return chats


def topic_passages() -> Iterator[Passage]:
    """Yield the language reference's topics, as `help()` shows them."""
    for name, text in sorted(pydoc_topics.topics.items()):
        paragraphs = tuple(_paragraphs(text))
        if paragraphs:
            yield Passage(name, paragraphs)


def docstring_passages() -> Iterator[Passage]:
    """Yield what the standard library's own docstrings say of their modules, classes and functions."""
    for path in _library_files():
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            paragraphs = tuple(_paragraphs(ast.get_docstring(node) or ""))
            if paragraphs:
                name = path.stem if isinstance(node, ast.Module) else f"{path.stem}.{node.name}"
                yield Passage(name, paragraphs)


def _library_files() -> list[Path]:
    library = Path(os.__file__).parent
    return sorted(
        path for path in library.rglob("*.py") if not SKIPPED_FOLDERS.intersection(path.relative_to(library).parts[:-1])
    )


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the prose of ``text``, one line per paragraph; code, tables and grammar are left out."""
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        prose = " ".join(block.split())
        code = any(
            line.startswith("    ") or "::=" in line or line.lstrip().startswith((">>>", "|", "+-")) for line in lines
        )
        ruled = re.search(r"[=*~\-^]{4,}", prose) is not None
        words = re.findall(r"[A-Za-z]{2,}", prose)
        mostly_words = sum(map(len, words)) > 0.6 * len(prose)
        if not code and not ruled and mostly_words and SHORTEST_PASSAGE <= len(prose) <= LONGEST_PASSAGE:
            yield prose


def _about(passage: Passage, rng: random.Random) -> Iterator[list[Message]]:
    """Yield conversations that together say each paragraph of the passage at least once."""
    first, *rest = passage.paragraphs
    chat = _opening(rng) + _turn(rng.choice(QUESTIONS).format(name=passage.name), first)
    for paragraph in rest:
        if len(chat) >= 7:
            yield chat
            chat = _opening(rng)
        question = "Go on." if rng.random() < 0.5 else f"Tell me more about {passage.name}."
        chat += _turn(question, paragraph)
    yield chat
    if rng.random() < 0.3:
        yield _continuation(rng.choice(passage.paragraphs), rng)
    if rng.random() < 0.15:
        document = "\n\n".join(passage.paragraphs[:6])
        yield _turn(f"{document}\n\nSummarise this in one sentence.", re.split(r"(?<=[.!?]) ", first)[0])


def _continuation(paragraph: str, rng: random.Random) -> list[Message]:
    words = paragraph.split()
    cut = rng.randint(2, max(2, len(words) // 2))
    return _turn(f"Continue: {' '.join(words[:cut])}", " ".join(words[cut:]) or paragraph)


def _opening(rng: random.Random) -> list[Message]:
    if rng.random() < 0.3:
        return [{"role": "system", "content": rng.choice(SYSTEM_PROMPTS)}]
    return []


def _turn(question: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
