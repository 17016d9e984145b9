#!/usr/bin/env bash
# Descriptions to regular expressions, NL-RX: exact match, and equality of languages.
#
#   bash scripts/regex.sh --seeds 1,2,3 --jobs 2                        made-up sentences
#   bash scripts/regex.sh --corpus turk --seeds 1,2,3 --jobs 2          paraphrases by people
#   bash scripts/regex.sh --slice 100 --max-update 5 --rows 2           test the whole chain
#
# greenery compares the languages, each pair for a few seconds at most.
#
# Options of this table:
#   --corpus synth|turk     (synth)
#   --data DIR              its files, see scripts/logical_forms.py (FAIRSEQ_PHRASE_DATA/regex/CORPUS, or a
#                           download)
CORPUS=synth
. "$(dirname "$0")/run_table.sh"
