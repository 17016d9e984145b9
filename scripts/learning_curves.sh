#!/usr/bin/env bash
# When does an encoder begin to learn? Learning curves of the PhraseTransformer, its parts, and controls.
#
#   bash scripts/learning_curves.sh --seeds 1,2,3 --jobs 2                  post-norm, every row
#   bash scripts/learning_curves.sh --setting pre_norm --seeds 1,2,3 --rows transformer,sigma,phrase_k2
#   bash scripts/learning_curves.sh --setting paper_size --rows transformer,phrase_k2,sigma
#   bash scripts/learning_curves.sh --slice 300 --max-update 3 --rows 2     test the whole chain
#
# Options of this table:
#   --setting post_norm|pre_norm|paper_size
#                           configs/tables/learning_curves.SETTING.yaml (post_norm)
SETTING=post_norm
. "$(dirname "$0")/run_table.sh"
