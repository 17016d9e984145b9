#!/usr/bin/env bash
# Semantic parsing: questions to logical forms, with attention, with copying, and with trees.
#
#   bash scripts/semantic_parsing.sh --seeds 1,2,3 --jobs 2             Geoquery
#   bash scripts/semantic_parsing.sh --corpus atis --seeds 1,2,3 --gpus 0 --jobs 6
#   bash scripts/semantic_parsing.sh --slice 100 --max-update 5 --rows 2        test the whole chain
#
# The score is exact match of forms, next to the lecture's numbers. A form is well-formed if its brackets
# match and its predicates occur in training.
#
# Options of this table:
#   --corpus geo|atis       (geo)
#   --data DIR              its files, see scripts/logical_forms.py (FAIRSEQ_PHRASE_DATA/geo or atis, or a download)
#   --copy-words N          places for rare words, in the data of the rows that copy (20)
CORPUS=geo COPY_WORDS=20
. "$(dirname "$0")/run_table.sh"
