#!/usr/bin/env bash
# When does an encoder begin to learn? Learning curves of the PhraseTransformer, its parts, and controls.
#
#   bash scripts/learning_curves.sh --seeds 1,2,3 --jobs 2                  post-norm, every row
#   bash scripts/learning_curves.sh --setting pre_norm --seeds 1,2,3 --rows transformer,sigma,phrase_k2
#   bash scripts/learning_curves.sh --setting paper_size --rows transformer,phrase_k2,sigma
#   bash scripts/learning_curves.sh --slice 300 --max-update 3 --rows 2     test the whole chain
#
# report/ has BLEU at the end, and the curves as a picture (curves.png). onset.md has BLEU after 900 updates, and the
# update at which each row's validation loss has fallen to 4 bits per subword.
#
# Options of this table:
#   --setting post_norm|post_norm_lr0.001|post_norm_lr0.0005|pre_norm|paper_size
#                           configs/tables/learning_curves.SETTING.yaml (post_norm)
SETTING=post_norm

own_make_reports() {
    make_reports
    run python scripts/onset.py "$OUT/rows" --titles "$OUT/configs/rows.yaml" --nll 4.0 --reference "${REFERENCES[0]}" \
        --early generate-updates900.txt --out "$OUT/onset"
}
. "$(dirname "$0")/run_table.sh"
