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
        ({"sampling": True, "sampling_topk": 0}, "sampling_topk 0: expected a positive number"),
        ({"sampling_topk": 3}, "sampling_topk needs sampling"),
        ({"sampling_topp": 0.3}, "sampling_topp needs sampling"),
        ({"temperature": 0.3}, "temperature needs sampling"),
        ({"sampling": True, "beam": 5}, "most probable draws, which are no samples"),
        ({"sampling": True, "beam": 2}, "2.*: a number of draws other than nbest would keep"),
        ({"sampling": True, "sampling_topk": 2, "sampling_topp": 0.5}, "topk or .*topp, not both"),
        *(
            (
                {"sampling": True, "sampling_topp": share},
                f'"{share}": expected a probability above 0',
            )
            for share in (1.5, 0.0, float("nan"))
        ),
        *(
            ({"sampling": True, "temperature": value}, f'"{value}": expected a number above 0')
            for value in (0.0, float("inf"))
        ),
    ],
)
def test_a_mistake_is_named(options, message):
    with pytest.raises(UserError, match=message):
        SearchOptions(**options)


def test_fairseqs_generators_get_all_values():
    options = SearchOptions(sampling=True, nbest=4, sampling_topk=90, temperature=0.5, lenpen=0.3)
    assert options.of_generator(entries=50) == {
        "beam": 4, "lenpen": 0.3, "sampling": True, "sampling_topk": 50, "sampling_topp": -1.0,
        "temperature": 0.5,
    }  # fmt: skip
    assert SearchOptions().of_generator(entries=50)["beam"] == 5


def test_all_subwords_together_have_the_probability_of_1():
    options = SearchOptions(sampling=True, sampling_topp=1.0)
    assert options.of_generator(entries=50)["sampling_topp"] == 1.0
