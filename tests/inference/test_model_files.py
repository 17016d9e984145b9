"""The device of --device."""

import pytest
import torch

from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.model_files import device_named


@pytest.mark.parametrize("name", ["cuda:77", "no-device"])
def test_a_device_that_is_not_there_is_named_in_one_line(name):
    with pytest.raises(UserError, match=f"^device {name}: .+$"):
        device_named(name)


def test_the_default_is_a_gpu_if_there_is_one(monkeypatch):
    assert device_named("cpu") == torch.device("cpu")
    for there, name in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert device_named(None) == torch.device(name)
