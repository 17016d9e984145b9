"""SentEval's classifier: one hidden layer with the sigmoid, trained on fixed vectors by scikit-learn."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fairseq_phrase.errors import UserError
from fairseq_phrase.optional_packages import optional_packages

_BATCH = 64  # SentEval's


@dataclass(frozen=True)
class ProbeOptions:
    """The settings of the classifiers' training.

    Attributes:
        hidden: sizes of the hidden layer to choose from.
        l2: weights of the L2 penalty to choose from.
        epochs: passes over the training sentences, at most.
        patience: stop after this number of passes without a better accuracy on the validation sentences
            (SentEval: five checks, one after every fourth pass).
        seed: of the first weights and of the order of sentences.
    """

    hidden: Sequence[int] = (50, 100, 200)
    l2: Sequence[float] = (1e-5, 1e-3, 1e-1)
    epochs: int = 200
    patience: int = 20
    seed: int = 1


@dataclass(frozen=True)
class Probe:
    """The classifier that was best on the validation sentences.

    Attributes:
        hidden, l2: its settings (:class:`ProbeOptions`).
        epochs: the training pass after which its weights were saved.
        correct: whether each test sentence is labelled correctly. Shape: ``(sentences,)``, bool.
    """

    accuracy: float
    valid_accuracy: float
    hidden: int
    l2: float
    epochs: int
    classifier: Any = field(repr=False, default=None, compare=False)
    correct: np.ndarray | None = field(repr=False, default=None, compare=False)


def probe(
    vectors: Sequence[np.ndarray],
    labels: Sequence[Sequence[str] | np.ndarray],
    options: ProbeOptions,
) -> Probe:
    """Train classifiers, choose one on the validation split, and measure it on the test split.

    The vectors are standardized by the training split's means and deviations, because the scales of
    layers' states differ. A label that is absent from training is never predicted: its sentences count as
    wrong.

    Args:
        vectors: of the training, validation and test sentences. Shape: ``(sentences, width)`` each.
        labels: of the same sentences.

    Raises:
        UserError: scikit-learn is missing, or all training sentences have one label.
    """
    with optional_packages("probing needs scikit-learn", "scikit-learn"):
        from sklearn.preprocessing import StandardScaler
    numbers_of_labels = {label: number for number, label in enumerate(sorted(set(labels[0])))}
    if len(numbers_of_labels) < 2:
        raise UserError(f"all {len(labels[0])} training sentences have the label '{labels[0][0]}'")
    numbers = [np.array([numbers_of_labels.get(label, -1) for label in split]) for split in labels]
    scaler = StandardScaler().fit(vectors[0])
    train, valid, test = (scaler.transform(split).astype(np.float32) for split in vectors)
    probes = [
        _trained((train, numbers[0]), (valid, numbers[1]), hidden, l2, options)
        for hidden, l2 in itertools.product(options.hidden, options.l2)
    ]
    best = max(probes, key=lambda result: result.valid_accuracy)
    correct = best.classifier.predict(test) == numbers[2]
    return replace(best, accuracy=float(correct.mean()), classifier=None, correct=correct)


def _trained(
    train: tuple[np.ndarray, np.ndarray],
    valid: tuple[np.ndarray, np.ndarray],
    hidden: int,
    l2: float,
    options: ProbeOptions,
) -> Probe:
    """Train one classifier, and keep its weights of the best pass."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    classifier = MLPClassifier(
        (hidden,),
        activation="logistic",
        alpha=l2,
        batch_size=min(_BATCH, len(train[0])),
        # With an integer seed, partial_fit would start from it each time: all passes would have the same
        # batches.
        random_state=np.random.RandomState(options.seed),
    )
    classes = np.unique(train[1])
    best, best_epoch, best_weights = -1.0, 0, None
    for epoch in range(1, options.epochs + 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            classifier.partial_fit(*train, classes=classes)
        accuracy = float((classifier.predict(valid[0]) == valid[1]).mean())
        if accuracy > best:
            best, best_epoch = accuracy, epoch
            parts = classifier.coefs_, classifier.intercepts_
            best_weights = [[array.copy() for array in part] for part in parts]
        elif epoch - best_epoch >= options.patience:
            break
    assert best_weights is not None
    classifier.coefs_, classifier.intercepts_ = best_weights
    return Probe(0.0, best, hidden, l2, best_epoch, classifier)
