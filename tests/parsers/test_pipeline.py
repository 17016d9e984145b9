"""What stands around a parser: failures, lengths, words that are kept, constituents."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.errors import UserError
from fairseq_phrase.option_values import CONSTITUENTS
from fairseq_phrase.parsers import FileParser, LineParser, Unparsed
from fairseq_phrase.parsers.interfaces import flat, split_at_white_space
from fairseq_phrase.parsers.pipeline import ParsingOptions, ParsingPipeline
from fairseq_phrase.syntax import spellings
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence
from fairseq_phrase.syntax.spellings import unescape_moses
from tests.support.hostile import lines


class Chains(LineParser):
    """Each word depends on the one before it; it fails on lines that hold ``bad``."""

    version = "chains"
    fields: tuple[str, ...] = ("words", "heads", "deprels", "tags", "spans")

    def __init__(self):
        self.seen = []

    def parse(self, lines):
        self.seen.append(list(lines))
        return [self.chain(line.split()) for line in lines]

    def parse_words(self, sentences):
        self.seen.append([list(words) for words in sentences])
        return [self.chain(list(words)) for words in sentences]

    def chain(self, words):
        if "bad" in words:
            raise KeyError("bad luck")
        if "long" in words:
            return Unparsed("too long", ParsedSentence(["?"], [True]))
        count = len(words)
        tree = DependencyTree([max(word - 1, 0) for word in range(count)])
        labels = [f"{word}" for word in range(count)]
        spaces = [False] * count
        return ParsedSentence(
            words,
            spaces,
            tree=tree,
            deprels=labels,
            tags=labels,
            constituents=ConstituencyTree.flat(count),
        )


@pytest.fixture
def around(install_parser):
    """Make a pipeline around a parser."""

    def make(parser, constituents="parser", tokenized=False):
        install_parser(lambda: parser)
        return ParsingPipeline(ParsingOptions("of-test", constituents, tokenized))

    return make


def test_only_the_lines_on_which_a_parser_fails_come_back_unparsed(around):
    pipeline = around(Chains())

    @given(st.lists(st.sampled_from(["", "a", "a b c", "bad", "x bad", "long", "d e"])))
    def check(texts):
        for sentence, text in zip(pipeline.parse(texts), texts, strict=True):
            if "bad" in text:
                assert sentence == Unparsed(
                    "of-test failed: KeyError: 'bad luck'", split_at_white_space(text)
                )
            elif text == "long":
                assert sentence.reason == "too long"
            else:
                assert sentence.words == text.split()

    check()


def test_one_bad_line_in_a_thousand_costs_little(around):
    parser = Chains()
    around(parser).parse(["a b"] * 700 + ["bad"] + ["a"] * 300)
    assert sum(map(len, parser.seen)) < 3.1 * 1001
    assert len(parser.seen) < 25


def test_lines_go_to_the_parser_by_length_and_come_back_in_order(around):
    parser = Chains()
    texts = ["a b c d", "", "x y", "z", "q q q"]
    parsed = around(parser).parse(texts)
    assert parser.seen == [sorted(texts, key=len)]
    assert [sentence.words for sentence in parsed] == [text.split() for text in texts]


@pytest.mark.parametrize("error", [UserError, MemoryError])
def test_a_parser_that_cannot_be_used_at_all_stops_the_run(around, error):
    class Broken(Chains):
        def parse(self, lines):
            raise error("no")

        tokenize = parse

    with pytest.raises(error):
        around(Broken()).parse(["a", "b"])
    with pytest.raises(error):
        around(Broken()).tokenize("a")


def test_a_generator_of_parses_will_do(around):
    class Lazy(Chains):
        def parse(self, lines):
            yield from map(self.chain, map(str.split, lines))

    parsed = around(Lazy()).parse(["a b", "bad", "c"])
    assert [isinstance(sentence, Unparsed) for sentence in parsed] == [False, True, False]


@pytest.mark.parametrize("change", [lambda parses: parses[1:], lambda parses: parses * 2])
def test_fewer_or_more_parses_than_lines_are_no_parses(around, change):
    class Miscounting(Chains):
        def parse(self, lines):
            return change(super().parse(lines))

    parsed = around(Miscounting()).parse(["a", "b"])
    assert all(isinstance(sentence, Unparsed) for sentence in parsed)
    assert "parses of 1 lines came back" in parsed[0].reason


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        (
            lambda s: s[::-1],
            ["word 1 is 'c', and the text has 'a b'", "'a', and the text has 'c d'"],
        ),
        (lambda s: [None, s[1]], ["returned NoneType for this line", None]),
        (lambda s: [Unparsed("no", None), s[1]], ["no", None]),
        (lambda s: [s[1], s[1]], ["word 1 is 'c', and the text has 'a b'", None]),
        (lambda s: None, ["failed: TypeError"] * 2),
    ],
)
def test_what_a_parser_returns_is_compared_with_the_line(around, change, reasons):
    class Confused(Chains):
        sorts_by_length = True

        def parse(self, lines):
            return change(super().parse(lines)) if len(lines) == 2 else change([])

    texts = ["a b", "c d"]
    for parse, text, reason in zip(around(Confused()).parse(texts), texts, reasons, strict=True):
        assert isinstance(parse, Unparsed) == (reason is not None)
        if isinstance(parse, Unparsed):
            assert reason in parse.reason
            assert parse.sentence == split_at_white_space(text)


def test_words_of_a_tokenizer_are_compared_with_the_line(around):
    class Other(Chains):
        def tokenize(self, lines):
            return [split_at_white_space("other words") if "x" in line else None for line in lines]

    pipeline = around(Other())
    assert pipeline.tokenize("an x") == split_at_white_space("an x")
    assert pipeline.tokenize("a b") == split_at_white_space("a b")


def test_words_that_differ_in_case_get_the_form_of_the_text(around):
    class Upper(Chains):
        def parse(self, lines):
            return super().parse([line.upper() for line in lines])

        def parse_words(self, sentences):
            return super().parse_words([[w.upper() for w in words] for words in sentences])

    for tokenized in (False, True):
        (sentence,) = around(Upper(), tokenized=tokenized).parse(["er sieht ＡＢ"])
        assert sentence.words == ["er", "sieht", "ＡＢ"]


def test_a_parser_with_words_of_its_own_compares_them_itself(around):
    class Splitting(Chains):
        words_spell_line = False

        def parse(self, lines):
            return [self.chain(line.replace("zum", "zu dem").split()) for line in lines]

    (sentence,) = around(Splitting()).parse(["zum Haus"])
    assert sentence.words == ["zu", "dem", "Haus"]


TREE = DependencyTree([0, 0])
FLAT = ConstituencyTree.flat(2)
AB, TT = ["a", "b"], [True, True]


def parse_of(words, spaces, tree, deprels, tags, constituents):
    labels = {"deprels": deprels, "tags": tags}
    return ParsedSentence(words, spaces, tree=tree, constituents=constituents, **labels)


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        (parse_of(AB, [True], TREE, AB, AB, FLAT), "2 words, but space_before for 1"),
        (parse_of(AB, TT, None, AB, AB, FLAT), "2 words, but heads for 0"),
        (parse_of(AB, TT, DependencyTree([0]), AB, AB, FLAT), "2 words, but heads for 1"),
        (parse_of(AB, TT, TREE, ["a"], AB, FLAT), "2 words, but deprels for 1"),
        (parse_of(AB, TT, TREE, AB, [], FLAT), "2 words, but tags for 0"),
        (parse_of(AB, TT, TREE, AB, AB, None), "2 words, but spans for 0"),
        (parse_of(AB, TT, TREE, AB, AB, ConstituencyTree.flat(3)), "but spans for 3"),
        (parse_of(["a", ""], TT, TREE, AB, AB, FLAT), "its words is empty or holds"),
        (parse_of(["a", "b c"], TT, TREE, AB, AB, FLAT), "its words is empty or holds"),
        (parse_of(AB, TT, TREE, ["a", "b\u00a0c"], AB, FLAT), "its deprels is empty or"),
        (parse_of(AB, TT, TREE, AB, ["", "b"], FLAT), "its tags is empty or holds"),
    ],
)
def test_a_parse_that_does_not_fit_its_words_counts_as_none(around, sentence, message):
    class Sloppy(Chains):
        def parse(self, lines):
            return [sentence] * len(lines)

    (unparsed,) = around(Sloppy()).parse(["a b"])
    assert isinstance(unparsed, Unparsed)
    assert unparsed.reason.startswith("of-test gave an unusable parse: ")
    assert message in unparsed.reason


def test_constituents_are_the_parsers_or_from_dependencies_or_none(around):
    parser = Chains()
    pipelines = {name: around(parser, name) for name in CONSTITUENTS}
    spans = {
        name: [None if s.constituents is None else len(s.constituents) for s in p.parse(["a b c"])]
        for name, p in pipelines.items()
    }
    assert spans == {"parser": [1], "from-dependencies": [2], "none": [None]}
    assert [("spans" in p.fields, p.constituents) for p in pipelines.values()] == [
        (True, "parser"),
        (True, "from-dependencies"),
        (False, "none"),
    ]


def test_constituents_of_dependencies_without_tags_have_a_label_all_the_same(around):
    class Tagless(Chains):
        fields = ("words", "heads")

        def chain(self, words):
            return ParsedSentence(words, [True] * len(words), tree=super().chain(words).tree)

    (sentence,) = around(Tagless(), "from-dependencies").parse(["a b"])
    assert sentence.constituents == ConstituencyTree([(0, 2)], ["X"], 2)


def test_constituents_from_dependencies_need_a_dependency_parser():
    with pytest.raises(UserError, match="--parser ptb makes no dependency trees"):
        ParsingPipeline(ParsingOptions("ptb", "from-dependencies"))


@pytest.mark.parametrize("constituents", CONSTITUENTS)
def test_a_line_without_a_parse_gets_trees_that_say_nothing(around, constituents):
    pipeline = around(Chains(), constituents)
    (unparsed,) = pipeline.parse(["x bad y"])
    sentence = flat(unparsed.sentence, pipeline.fields)
    assert sentence.words == ["x", "bad", "y"]
    assert sentence.tree.heads.tolist() == [0, 0, 0]
    assert (sentence.deprels, sentence.tags) == (["root", "dep", "dep"], ["X", "X", "X"])
    expected = None if constituents == "none" else ConstituencyTree.flat(3)
    assert sentence.constituents == expected


def test_a_line_that_cannot_be_tokenized_is_segmented_as_it_is_where_it_cannot_be_parsed(around):
    pipeline = around(Chains())
    assert pipeline.tokenize("a b").words == ["a", "b"]
    assert pipeline.tokenize("a bad  one") == pipeline.parse(["a bad  one"])[0].sentence


def test_tokenized_words_are_kept_and_the_parser_sees_them_unescaped(around):
    parser = Chains()
    pipeline = around(parser, tokenized=True)
    line = "a &apos;s  well @-@ known\u00a0&#91;x&#93; &amp;amp; 👩‍👩‍👧‍👦 \0"
    (sentence,) = pipeline.parse([line])
    assert parser.seen == [[["a", "'s", "well", "-", "known", "[x]", "&amp;", "👩‍👩‍👧‍👦", "\0"]]]
    assert sentence.words == line.split() == pipeline.tokenize(line).words
    assert sentence.space_before == [True] * 9
    assert sentence.tree.depths.tolist() == list(range(9))
    (unparsed,) = pipeline.parse(["&apos;s long"])
    assert unparsed == Unparsed("too long", split_at_white_space("&apos;s long"))


def test_a_parser_that_changes_tokenized_words_has_not_parsed_them(around):
    class Splitting(Chains):
        def parse_words(self, sentences):
            return [self.chain("".join(words).split("-")) for words in sentences]

    unchanged, changed = around(Splitting(), tokenized=True).parse(["&lt;", "a b @-@ c"])
    assert unchanged.words == ["&lt;"]
    assert changed.sentence.words == ["a", "b", "@-@", "c"]
    assert "expected word 1 to be 'a', found 'ab' (4 words in the text, 2 in the" in changed.reason


def test_a_parser_of_raw_text_alone_refuses_tokenized_text(around):
    class RawOnly(Chains):
        parse_words = LineParser.parse_words

    message = "cannot parse text that is already split into words: .*RawOnly the method parse_words"
    with pytest.raises(UserError, match=message):
        around(RawOnly(), tokenized=True).parse(["a"])


@given(lines(), st.booleans())
def test_without_a_parser_every_line_keeps_its_words(line, tokenized):
    pipeline = ParsingPipeline(ParsingOptions("none", "parser", tokenized))
    assert pipeline.parse([line]) == [pipeline.tokenize(line)] == [split_at_white_space(line)]


class Rows(FileParser):
    """Parses that stand in the file as words."""

    suffix = "rows"
    version = "rows"
    fields: tuple[str, ...] = ("words", "heads")

    def read(self, path, lines):
        for row, _line in zip(path.read_text().splitlines(), lines, strict=True):
            words = row.split()
            tree = DependencyTree([0] * len(words))
            yield ParsedSentence(words, [False] * len(words), tree=tree)


@pytest.mark.parametrize(
    ("parser", "line", "text", "words"),
    [
        ("ptb", "(S (X well) (HYPH -) (X known) (-LRB- -LRB-) (POS 's))", "well @-@ known ( &apos;s",
         ["well", "@-@", "known", "(", "&apos;s"]),
        ("ptb", "(S (X &) (X <))", "&amp; &lt;", ["&amp;", "&lt;"]),
        ("conllu", "1\t's\t_\tX\t_\t_\t0\troot\t_\tSpaceAfter=No", "&apos;s", ["&apos;s"]),
        ("conllu:surface", "1-2\tzum\t_\t_\t_\t_\t_\t_\t_\t_\n1\tzu\t_\tX\t_\t_\t0\troot\t_\t_\n"
         "2\tdem\t_\tX\t_\t_\t1\tdet\t_\t_", "zum", ["zum"]),
    ],
)  # fmt: skip
def test_files_of_parses_fit_tokenized_text(tmp_path, parser, line, text, words):
    path = tmp_path / "parses"
    path.write_text(f"{line}\n", encoding="utf-8")
    for tokenized in (True, False):
        pipeline = ParsingPipeline(ParsingOptions(parser, "parser", tokenized))
        plain = " ".join(map(unescape_moses, text.split()))
        (sentence,) = pipeline.read(path, iter([text if tokenized else plain]))
        assert not isinstance(sentence, Unparsed), sentence.reason
        assert sentence.words == (words if tokenized else plain.split())


def test_files_of_parses_with_other_words_than_the_tokenized_text_are_refused_line_by_line(
    tmp_path,
):
    path = tmp_path / "parses"
    row = "{}\t{}\t_\tX\t_\t_\t{}\troot\t_\t_\n"
    path.write_text(
        "1-2\tzum\t_\t_\t_\t_\t_\t_\t_\t_\n" + row.format(1, "zu", 0) + row.format(2, "dem", 1)
        + "\n" + row.format(1, "ab", 0) + row.format(2, "c", 1) + "\n" + row.format(1, "ab", 0)
    )  # fmt: skip
    pipeline = ParsingPipeline(ParsingOptions("conllu", "parser", tokenized=True))
    first, second, third = pipeline.read(path, iter(["zum", "a bc", "ab"]))
    assert "expected word 1 to be 'zum', found 'zu' (1 words in the text, 2" in first.reason
    assert "give --parser conllu:surface" in first.reason
    assert "expected word 1 to be 'a', found 'a▁b' (2 words in the text, 2" in second.reason
    assert second.sentence.words == ["a", "bc"]
    assert third.words == ["ab"]


def test_what_comes_out_of_files_is_finished_like_what_a_parser_makes(around, tmp_path):
    path = tmp_path / "parses"
    path.write_text("a b\nc\n")
    for tokenized in (True, False):
        pipeline = around(Rows(), "from-dependencies", tokenized)
        assert pipeline.fields == ("words", "heads", "spans")
        first, second = pipeline.read(path, iter(["a b", "c"]))
        assert first.constituents == ConstituencyTree([(0, 2)], ["X"], 2)
        assert len(second.constituents) == 0
        assert first.space_before == [tokenized] * 2


@pytest.mark.parametrize(
    ("rows", "message"), [("a\nb\nc\n", "returned more parses"), ("a\n", "returned fewer parses")]
)
def test_a_plugins_file_of_more_or_fewer_parses_than_lines_is_refused(
    around, tmp_path, rows, message
):
    class Unequal(Rows):
        def read(self, path, lines):
            for row in path.read_text().split():
                yield ParsedSentence([row], [True], tree=DependencyTree([0]))

    path = tmp_path / "parses"
    path.write_text(rows)
    with pytest.raises(UserError, match=message):
        list(around(Unequal()).read(path, iter(["a", "b"])))


def test_a_plugins_file_is_compared_with_the_text(around, tmp_path):
    path = tmp_path / "parses"
    path.write_text("a b\nc\n")
    first, second = around(Rows()).read(path, iter(["b a", "C"]))
    assert "word 1 is 'a', and the text has 'b a' there" in first.reason
    assert second.words == ["C"]


MARKED = "It ’s ‘ fun ’ – “ ok ” £ 5 ışık"
PLAIN = "It 's ` fun ' -- `` ok '' # 5 IŞIK"


def test_an_invisible_word_of_the_text_is_not_part_of_the_next_word(around):
    class Visible(Chains):
        def chain(self, words):
            return super().chain([word for word in words if word != "\u200b"])

    (parse,) = around(Visible()).parse(["a \u200b dog"])
    assert parse.words == ["a", "dog"]


class Treebankese(Chains):
    """It writes marks as the Penn Treebank's tokenizer does."""

    def parse(self, lines):
        return [self.chain(PLAIN.split()) for _ in lines]

    parse_words = parse


@pytest.mark.parametrize("tokenized", [False, True])
@pytest.mark.parametrize("reader", ["of-test", "ptb", "conllu", "conllu:surface"])
def test_every_parser_may_write_marks_in_its_way_and_the_text_keeps_its_own(
    tmp_path, install_parser, reader, tokenized
):
    line = MARKED if tokenized else "".join(MARKED.split())
    if reader == "of-test":
        install_parser(Treebankese)
        (sentence,) = ParsingPipeline(ParsingOptions(reader, tokenized=tokenized)).parse([line])
    else:
        path = tmp_path / "text.xx"
        if reader == "ptb":
            path.write_text(f"(S {' '.join(f'(X {word})' for word in PLAIN.split())})\n")
        else:
            rows = (
                f"{number}\t{word}\t_\tX\t_\t_\t{number - 1}\tdep\t_\t_\n"
                for number, word in enumerate(PLAIN.split(), start=1)
            )
            path.write_text("".join(rows))
        parses = ParsingPipeline(ParsingOptions(reader, tokenized=tokenized))
        (sentence,) = parses.read(path, iter([line]))
    assert not isinstance(sentence, Unparsed), sentence.reason
    assert sentence.words == MARKED.split()


@pytest.mark.parametrize(
    "mark", [*"\u0591\u05bc\u064b\u0670\u0711\u0730\u074a\u08d4\u08fe\u093c\u09bc\u0640"]
)
def test_points_of_hebrew_arabic_and_syriac_are_optional(mark):
    assert spellings.is_optional_mark(mark)


@pytest.mark.parametrize("mark", [*"a\u05d0\u0627\u0301\u0941\u0e34\u07a6\u0816\u0900"])
def test_letters_and_marks_of_other_scripts_are_not_optional(mark):
    assert not spellings.is_optional_mark(mark)
