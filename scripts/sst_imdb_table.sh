#!/usr/bin/env bash
# Classification with trees: SST-5, SST-2 and IMDB.
#
#   bash scripts/sst_imdb_table.sh --task sst5 --seeds 1,2,3 --jobs 2
#   bash scripts/sst_imdb_table.sh --task imdb --seeds 1,2,3 --gpus 0 --jobs 4
#   bash scripts/sst_imdb_table.sh --task sst2 --slice 300 --max-update 5 --rows 2   test the whole chain
#
# SST has its own trees. All phrases of the training trees are examples. IMDB's documents are parsed; the sentences
# of a document are trees under one root. Reviews longer than 1,000 subwords are left out of training and
# validation. Longer test reviews are truncated to 1,024 tokens (truncate_source): each has a label.
#
# Options of this table:
#   --task sst5|sst2|imdb   (sst5)
#   --phrases train|none    SST: train on all phrases, or on sentences only (train)
#   --data DIR              train.txt, dev.txt and test.txt of SST, or train.tsv and test.tsv of IMDB, .gz too
#                           (FAIRSEQ_PHRASE_DATA/sst or imdb)
TASK=sst5 PHRASES=train

choose() {
    CLASSES=${TASK#sst} WHAT='all phrases'
    [ "$PHRASES" = train ] || WHAT=sentences
}
. "$(dirname "$0")/run_table.sh"
