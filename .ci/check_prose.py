#!/usr/bin/env python3
"""Checks the prose of the tree: length of the main documents, mean sentence length, banned phrases, links, commit subjects.

    .ci/check_prose.py                 check everything; exit code 1 if something is wrong
    .ci/check_prose.py --sentences     print words, mean and longest sentence of each document

Only the standard library is used. Each limit is below, once.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Most words of a document: a word is a token with a letter or a digit in it, in code blocks and tables too.
WORDS_MAX = {"README.md": 900, "ARCHITECTURE.md": 1800}
# Most words that the sentences of a document have on average. Code blocks, headings and tables are not sentences.
MEAN_SENTENCE_MAX = 18.0
# Longest line of a commit message's subject, in characters, and how many of the last commits are looked at.
SUBJECT_MAX = 72
SUBJECTS_CHECKED = 20
# The last commit before that rule: it and its ancestors are not looked at.
SUBJECTS_AFTER = "c66bee9"

# Phrases that hide the subject of a sentence or that are not English of the field, each with what to write. They are matched without
# regard to case, as whole words, in documents, in comments and in strings.
BANNED = {
    r"whoever": "name the subject: a peer, a member, a user",
    r"whomever": "name the subject",
    r"anew": "again; from the beginning; restarts",
    r"of (?:one|its|their|your)(?:'s)? own accord": "by itself",
    r"of one's own": "your own; its own",
    r"of late": "recently; in the last N seconds",
    r"it is said": "name who reports it",
    r"(?:is|are) told of": "name who reports it",
    r"what came of": "the result of",
    r"what (?:becomes|became) of": "the state of; what happens to",
    r"as ever": "as usual; or leave it out",
    r"nobody's": "unattributed; unowned",
    r"all the same": "nevertheless; or leave it out",
    r"to be had": "available",
    r"a word goes": "a control message goes",
    r"in vain": "for nothing; discarded",
    r"has to do with": "concerns; uses",
    r"have to do with": "concern; use",
}

# Directories that hold nothing of ours, and files that quote the phrases.
SKIPPED = {".git", "target", ".ci", "node_modules"}
# Sources are checked in their comments and strings. Documents have none of the phrases. Sources had more when this check was written: the
# number may only fall. A change that removes some lowers it here.
CHECKED_SOURCES = (".rs", ".py", ".toml")
SOURCE_PHRASES_MAX = 0


def files(*suffixes):
    for path in sorted(ROOT.rglob("*")):
        inside = path.relative_to(ROOT).parts
        if path.suffix in suffixes and path.is_file() and not SKIPPED & set(inside):
            yield path


def without_code(text):
    """The text with empty lines in place of its code blocks, which show what programs print."""
    return re.sub(r"^```.*?^```", lambda block: "\n" * block.group().count("\n"), text, flags=re.M | re.S)


def prose(text):
    """The sentences of a Markdown text: neither code blocks, nor headings, tables, pictures and link targets."""
    text = re.sub(r"^```.*?^```", "\n\n", text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    paragraphs, current = [], []
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "|", "![")):
            paragraphs.append(" ".join(current))
            current = []
            continue
        if re.match(r"(?:[-*]|\d+\.)\s", stripped):
            paragraphs.append(" ".join(current))
            current = [re.sub(r"^(?:[-*]|\d+\.)\s+", "", stripped)]
        else:
            current.append(stripped)
    paragraphs.append(" ".join(current))
    for paragraph in paragraphs:
        paragraph = re.sub(r"`[^`]*`", "code", paragraph)
        paragraph = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)
        paragraph = paragraph.replace("*", "")
        for sentence in re.split(r"(?<=[.!?])\s+(?=[\"(]?[A-Z0-9c])", paragraph):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if words:
                yield words


def lengths(path):
    return [len(words) for words in prose(path.read_text(encoding="utf-8"))]


def word_count(path):
    return sum(1 for word in path.read_text(encoding="utf-8").split() if re.search(r"\w", word))


def check_documents():
    for name, most in WORDS_MAX.items():
        count = word_count(ROOT / name)
        if count > most:
            yield f"{name}: {count} words; at most {most}"
    for path in files(".md"):
        name = path.relative_to(ROOT)
        counted = lengths(path)
        if counted and sum(counted) / len(counted) > MEAN_SENTENCE_MAX:
            yield f"{name}: sentences have {sum(counted) / len(counted):.1f} words on average; at most {MEAN_SENTENCE_MAX:g}"
        yield from check_links(path, name)


def check_links(path, name):
    """A file that a document names in backquotes or links to is there. The changelog names files that are gone."""
    if name.name == "CHANGELOG.md":
        return
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    targets = re.findall(r"\]\(([^)#:]+)\)", text)
    for target in targets:
        if not (path.parent / target).exists():
            yield f"{name}: there is no {target}"
    for target in re.findall(r"`([\w.-]+(?:/[\w.-]+)+/?|[A-Z]+\.md)`", text):
        top = target.split("/")[0]
        is_ours = (ROOT / top).exists() and top not in {"target"}
        if is_ours and not (ROOT / target).exists():
            yield f"{name}: there is no {target}"


def check_source_links():
    """A document that a source names is there."""
    for path in files(*CHECKED_SOURCES):
        for target in re.findall(r"\bdocs/[\w/.-]+?\.md\b", path.read_text(encoding="utf-8")):
            if not (ROOT / target).exists():
                yield f"{path.relative_to(ROOT)}: there is no {target}"


def commented(line, suffix):
    """What people read in a line of source: its comment, and its strings."""
    marker = "//" if suffix == ".rs" else "#"
    comment = line.partition(marker)[2] if marker in line else ""
    return comment + " " + " ".join(re.findall(r'"((?:[^"\\]|\\.)*)"', line))


def check_phrases(*suffixes):
    patterns = [(re.compile(rf"\b{phrase}\b", re.I), advice) for phrase, advice in BANNED.items()]
    for path in files(*suffixes):
        name = path.relative_to(ROOT)
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            text = without_code(text)
        for number, line in enumerate(text.splitlines(), 1):
            shown = line if path.suffix == ".md" else commented(line, path.suffix)
            for pattern, advice in patterns:
                found = pattern.search(shown)
                if found:
                    yield f"{name}:{number}: \"{found.group()}\": {advice}"


def check_subjects():
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)

    # A checkout without history has no such commit, and one without git has no subjects.
    is_known = git("cat-file", "-e", f"{SUBJECTS_AFTER}^{{commit}}").returncode == 0
    revisions = f"{SUBJECTS_AFTER}..HEAD" if is_known else "HEAD"
    for line in git("log", f"-{SUBJECTS_CHECKED}", "--no-merges", "--format=%h %s", revisions).stdout.splitlines():
        commit, _, subject = line.partition(" ")
        if len(subject) > SUBJECT_MAX:
            yield f"commit {commit}: the subject has {len(subject)} characters; at most {SUBJECT_MAX}"


def print_sentences():
    for path in files(".md"):
        counted = lengths(path) or [0]
        name = str(path.relative_to(ROOT))
        print(f"{name:<34} {word_count(path):>6,} words  mean {sum(counted) / len(counted):>5.1f}  longest {max(counted):>3}")


if __name__ == "__main__":
    if "--sentences" in sys.argv[1:]:
        print_sentences()
        sys.exit()
    wrong = [*check_documents(), *check_source_links(), *check_phrases(".md"), *check_subjects()]
    in_sources = list(check_phrases(*CHECKED_SOURCES))
    if len(in_sources) > SOURCE_PHRASES_MAX:
        wrong += [*in_sources, f"sources: {len(in_sources)} phrases; at most {SOURCE_PHRASES_MAX}"]
    elif len(in_sources) < SOURCE_PHRASES_MAX:
        print(f"sources have only {len(in_sources)} phrases left: SOURCE_PHRASES_MAX in {sys.argv[0]} can be lowered")
    for line in wrong:
        print(line)
    sys.exit(1 if wrong else 0)
