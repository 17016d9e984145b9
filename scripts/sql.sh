#!/usr/bin/env bash
# Questions to SQL, WikiSQL: aggregate, column and conditions as one sequence, with copying and without.
#
#   bash scripts/sql.sh --seeds 1,2,3 --jobs 2
#   bash scripts/sql.sh --slice 100 --max-update 5 --rows 2             test the whole chain
#
# The source is the question and the names of the table's columns (scripts/wikisql.py).
#
# Options of this table:
#   --data FILE             text2sql-data's wikisql.json, .bz2 too (that of
#                           FAIRSEQ_PHRASE_DATA/wikisql, or a download)
#   --train-size N          questions to train on (10000)
#   --test-size N           questions to test on (1000)
#   --copy-words N          places for words that training has less than five times (15)
TRAIN_SIZE=10000 TEST_SIZE=1000 COPY_WORDS=15
. "$(dirname "$0")/run_table.sh"
