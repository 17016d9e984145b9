"""Packaging metadata."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(
    r'__version__ = "(.+)"', (HERE / "fairseq_phrase" / "__init__.py").read_text()
).group(1)
BPE = ["subword-nmt>=0.3.8"]
MOSES = [*BPE, "sacremoses>=0.1.1"]
CONLLU = ["conllu>=4.5"]  # scripts/adapt_parser.py, scripts/slog_trees.py
DEMO = ["fastapi>=0.110", "uvicorn>=0.29"]
FORMS = ["greenery>=4.2", "pebble>=5", "sqlglot>=25"]  # languages of regular expressions, SQL
LABEL = ["scikit-learn>=1.5", "seqeval>=1.2.2"]  # F1 of spans, scores of single labels
PLOT = ["matplotlib>=3.8"]
PROBE = ["scikit-learn>=1.5"]
RAY = ["ray[client]>=2.9"]  # client: addresses ray://HOST:PORT
# Before 1.10 Stanza's models cannot be loaded by torch >= 2.6, and before 1.11 its tokenizer cuts a
# line in a batch otherwise than alone.
STANZA = ["stanza>=1.11"]
CTRANSLATE2 = ["ctranslate2>=4.8"]
TRANSFORMERS = ["transformers>=5.20"]
TEST = [
    *DEMO,
    "httpx>=0.27",  # FastAPI's test client
    "selenium>=4.20",  # a real browser, if the machine has chromium
    *CTRANSLATE2,
    *FORMS,
    *TRANSFORMERS,
    *LABEL,
    *MOSES,
    *PLOT,
    *PROBE,
    *RAY,
    *STANZA,
    *CONLLU,
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.5",
    "pyzipper>=0.4",  # scripts/keep_results.py --encrypt-translations
    "hypothesis>=6.100",
]
COMMANDS = (
    "analyze",
    "attach",
    "average",
    "demo",
    "export",
    "inspect",
    "label",
    "plot",
    "preprocess",
    "probe",
    "report",
    "score",
    "synthetic",
    "translate",
)

# A module named inspect would be mistaken for the standard library's.
MODULES = {"inspect": "inspect_data"}

setup(
    name="fairseq-phrase",
    version=VERSION,
    description="Syntax-aware encoders for fairseq: phrases, structural positions, trees",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=find_packages(include=["fairseq_phrase", "fairseq_phrase.*"]),
    package_data={
        "fairseq_phrase.demo": ["page.html", "page.js", "page.css"],
        "fairseq_phrase.report": ["page.html"],
        "fairseq_phrase.modules": ["crossovers.json"],
    },
    python_requires=">=3.10,<3.14",
    # The oldest that were tried; but torch's is where weights_only became the default (2.13 was
    # tried), and of spaCy 3.8 it was 3.8.18.
    install_requires=[
        "fairseq-fixed==0.12.3.1",
        "torch>=2.6",
        "numpy>=2.0.2",
        "Jinja2>=3.1",
        "PyYAML>=6",
        "sacrebleu>=2.3.1",
        "safetensors>=0.4.3",
        "scipy>=1.13",
        "sentencepiece>=0.2.0",
        "spacy>=3.8",
        "tabulate>=0.9",
        "tqdm>=4.64",
    ],
    extras_require={
        "bpe": BPE,
        "conllu": CONLLU,
        "demo": DEMO,
        "ctranslate2": CTRANSLATE2,
        "forms": FORMS,
        "label": LABEL,
        "moses": MOSES,
        "plot": PLOT,
        "probe": PROBE,
        "ray": RAY,
        "stanza": STANZA,
        "test": TEST,
        "transformers": TRANSFORMERS,
        "dev": [*TEST, "ruff>=0.17", "mypy>=2.4"],  # CI's versions are in .ci/constraints.txt
    },
    entry_points={
        "console_scripts": [
            f"fairseq-phrase-{name}=fairseq_phrase.cli.{MODULES.get(name, name)}:main"
            for name in COMMANDS
        ]
    },
)
