#!/usr/bin/env bash
# The PhraseTransformer paper's table 2: part-of-speech tagging, with controls and other encoders.
#
#   bash scripts/ptb_tagging_table2.sh --seeds 1,2,3 --jobs 2           English EWT
#   bash scripts/ptb_tagging_table2.sh --data wsj --seeds 1,2,3 --gpus 0 --jobs 6
#   bash scripts/ptb_tagging_table2.sh --slice 300 --max-update 5 --rows 2   test the whole chain
#
# The paper's corpus is the Penn Treebank, which has a licence. Without it, the tags are the Penn tags (XPOS) of
# Universal Dependencies' English EWT, and the paper's numbers are not comparable. A parser makes the trees.
#
# Options of this table:
#   --data DIR              Penn Treebank, bracketed: wsj_SSNN.mrg in any folders. Sections 0-18 train, 19-21
#                           tune and 22-24 test, and rows have more updates; fewer sections, as in NLTK's
#                           sample, are split 8 : 1 : 1
#   --treebank DIR          English EWT, CoNLL-U (FAIRSEQ_PHRASE_DATA/treebanks/en_ewt, or a
#                           download)
TREEBANK=''

# Whether the corpus has sections after 18, as in scripts/labelled_text.py. A folder continues where there is no corpus.
is_whole() {
    local settings
    settings=$(kept_settings)
    if [ -n "$settings" ]; then
        [[ $settings == *" whole "* ]]
    else
        [ -d "$DATA" ] && [ -n "$(find "$DATA/" '(' -name 'wsj_19*.mrg' -o -name 'wsj_2*.mrg' ')' -print -quit)" ]
    fi
}

choose() {
    READER=conllu FORM=ewt WHAT='English EWT, XPOS'
    if [ -n "$DATA" ]; then READER=ptb FORM=ptb WHAT="Penn Treebank ($DATA)"; fi
    WHAT+=" (the paper's numbers: the whole Penn Treebank)"
    name_folder "ptb_tagging_table2.$FORM"
    if is_whole; then
        FILES+=(configs/tables/ptb_tagging_table2.whole.yaml) SETTINGS+=' whole'
    fi
    DATA=${DATA:-$TREEBANK}
}
. "$(dirname "$0")/run_table.sh"
