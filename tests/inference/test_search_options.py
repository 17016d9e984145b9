"""Options of the search for translations: each mistake has one message."""

import pytest

from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.search_options import SearchOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 0}, "beam 0: expected a positive number"),
        ({"batch_size": -1}, "batch_size -1: expected a positive number"),
        ({"nbest": 6}, "nbest 6: expected 1 to the number of beams, 5"),
        ({"nbest": 0}, "nbest 0: expected a positive number"),
    ],
)
def test_a_mistake_is_named(options, message):
    with pytest.raises(UserError, match=message):
        SearchOptions(**options)
