"""Skip-gram with negative sampling: vectors of words in two tables, which all peers read and add to at their own pace.

    python skipgram.py [TEXT]                              the first peer prints an invite
    PEERGRAD_INVITE=pg1... python skipgram.py [TEXT]       every other peer, with the same text

Without a file the script makes up a text of five topics, each with twenty words of its own. Words of a topic should end up as
neighbours. (Mikolov et al., "Distributed Representations of Words and Phrases and their Compositionality", 2013.)
"""

import sys
from pathlib import Path

import numpy as np

import peergrad as pg

WIDTH, WINDOW, NEGATIVES = 32, 2, 5


def made_up_text(sentences: int = 4000) -> list[str]:
    """Sentences of ten words, each of one topic."""
    rng = np.random.default_rng(1)
    topics = rng.integers(5, size=sentences)
    return [f"topic{topic}-word{word}" for topic in topics for word in rng.integers(20, size=10)]


def pairs_of(text: list[str]) -> tuple[list[str], np.ndarray]:
    """The words of a text, the most frequent first, and (pairs, 2): the numbers of words that are close to each other."""
    words, numbers, counts = np.unique(text, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    numbers = np.argsort(order)[numbers]
    pairs = [np.stack([numbers[:-gap], numbers[gap:]], axis=1) for gap in range(1, WINDOW + 1)]
    return words[order].tolist(), np.concatenate([*pairs, *(pair[:, ::-1] for pair in pairs)])


def skipgram(centre: np.ndarray, context: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """The summed loss, and its gradients, of vectors (pairs, width) of words and (pairs, 1 + negatives, width) of their contexts."""
    scores = np.einsum("pw,pnw->pn", centre, context)
    slopes = 1 / (1 + np.exp(-scores)) - labels
    loss = np.logaddexp(0, np.where(labels, -scores, scores)).sum()
    return float(loss), np.einsum("pn,pnw->pw", slopes, context), slopes[..., None] * centre[:, None]


def neighbours(vectors: np.ndarray, word: int, count: int) -> np.ndarray:
    """The words whose vectors point most in the direction of this word's."""
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-9)
    return np.argsort(-(units @ units[word]))[1 : count + 1]


def main() -> None:
    text = Path(sys.argv[1]).read_text().lower().split() if len(sys.argv) > 1 else made_up_text()
    words, pairs = pairs_of(text)
    first = np.random.default_rng(1).uniform(-0.5 / WIDTH, 0.5 / WIDTH, (len(words), WIDTH))
    adagrad = {"rule": "adagrad", "rate": 0.1}
    tables = {"words": pg.Table(len(words), WIDTH, initial=first, **adagrad), "contexts": pg.Table(len(words), WIDTH, **adagrad)}
    labels = np.eye(1, 1 + NEGATIVES, dtype=np.float32)
    with pg.Tables("skipgram", tables, samples=len(pairs), run={"batch": 1024, "epochs": 1}) as swarm:
        for clock in swarm:
            centres, true = pairs[clock.samples].T
            # Contexts that are drawn at random, as often as they are in the text.
            others = np.random.default_rng(clock.seed).choice(pairs[:, 1], (len(true), NEGATIVES))
            contexts = np.concatenate([true[:, None], others], axis=1)
            loss, of_centres, of_contexts = skipgram(clock.get("words", centres), clock.get("contexts", contexts), labels)
            clock.add("words", centres, of_centres)
            clock.add("contexts", contexts, of_contexts)
            clock.end(loss)
    vectors = swarm.last_table("words")
    for word in (0, len(words) // 4, len(words) // 2):
        print(f"{words[word]}: {', '.join(words[other] for other in neighbours(vectors, word, 5))}")
    print(f"digest {swarm.result.digest}")


if __name__ == "__main__":
    main()
