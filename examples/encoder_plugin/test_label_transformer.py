"""The tests that every encoder must pass, for this encoder."""

import pytest

from fairseq_phrase.testing import CHECKS, variants_of

NAME = "label_transformer"


@pytest.mark.parametrize("variant", variants_of(NAME))
@pytest.mark.parametrize("check", CHECKS)
def test_label_transformer(check, variant):
    check(NAME, variant)
