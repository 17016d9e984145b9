#!/usr/bin/env bash
# Chunking on CoNLL-2000: F1 of spans, and phrases from a chunker.
#
#   bash scripts/chunking.sh --seeds 1,2,3 --jobs 2
#   bash scripts/chunking.sh --slice 300 --max-update 5 --rows 2        test the whole chain
#
# The row phrase_chunks takes phrases from a parser's constituents, not from the labels to predict.
#
# Options of this table:
#   --data DIR              train.txt and test.txt of CoNLL-2000, .gz too (FAIRSEQ_PHRASE_DATA/conll2000,
#                           or a download)
. "$(dirname "$0")/run_table.sh"
