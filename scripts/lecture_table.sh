#!/usr/bin/env bash
# The effect of attention: recurrent models with and without it, and Transformers, on Multi30k de-en.
#
#   bash scripts/lecture_table.sh --seeds 1,2,3 --jobs 2
#   bash scripts/lecture_table.sh --slice 300 --max-update 3 --rows none,dot     test the whole chain
#
# The report has BLEU by the source's length as a picture (lengths.png), and the rates of repeated n-grams.
#
# Options of this table:
#   --direction de-en|en-de (de-en)
#   --vocab-size N          subwords of both languages together (4000)
DIRECTION=de-en VOCAB_SIZE=4000
. "$(dirname "$0")/run_table.sh"
