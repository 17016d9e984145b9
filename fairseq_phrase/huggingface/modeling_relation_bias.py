"""Load this model, whose encoder reads trees, by the classes of transformers.

``save_pretrained`` of a model with relation biases copies this file into the model's folder:
``AutoModel.from_pretrained(FOLDER, trust_remote_code=True)`` loads the model with its biases.
"""

from typing import Any

try:
    from fairseq_phrase.huggingface.biased_models import biased_class
except ImportError as error:
    raise ImportError(
        "this model has relation biases of fairseq_phrase: pip install 'fairseq-phrase[transformers] @ "
        "git+https://github.com/fairseq-phrase/fairseq_phrase#subdirectory=without_fairseq' "
        f"({error})"
    ) from error


def __getattr__(name: str) -> Any:
    """Return a class of transformers with relation biases."""
    if name.startswith("_"):
        raise AttributeError(name)
    return biased_class(name)
