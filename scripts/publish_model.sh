#!/usr/bin/env bash
# A model to publish: Multi30k de-en, relation biases of tree and sentence, six epochs. The result is one folder,
# runs/published/bundle, with a model card, the scores of the test set and their signatures.
#
#   bash scripts/publish_model.sh --license ID                     train, translate, score, export
#   bash scripts/publish_model.sh --license ID --push USER/NAME    then upload it to the Hugging Face hub
#   bash scripts/publish_model.sh --slice 300 --max-update 3       test the whole chain
#
# Multi30k is for research and education only, and its repository names no licence, so you name the model's. The
# parser is not in the folder: its users install de_core_news_sm, or what FAIRSEQ_PHRASE_PARSER=spacy:NAME names.
#
# Options of this table:
#   --license ID            the licence in the model card, as model hubs write it, such as cc-by-nc-sa-4.0
#   --push USER/NAME        upload the folder; needs --license, and a parser that others can install
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

LICENSE='' PUSH='' SOURCE=de TARGET=en ROWS=relation
parse_options
[ "$ROWS" = relation ] || die "--rows $ROWS: this script publishes the row relation"
[[ $SEEDS =~ ^[0-9]+$ ]] || die "--seeds $SEEDS: one model is published, so name one seed"
[[ -z $PUSH || $LICENSE ]] || die "--push $PUSH: name the model's licence (--license ID)"
open_table plot published "corpus=multi30k" configs/tables/quickstart.yaml configs/tables/quickstart.full.yaml

say "Text"
need_corpus multi30k
TRAIN=$FOUND/train DEV=$FOUND/val TEST=$FOUND/test_2016_flickr
choose_parser "$OUT/data-bin" "Trees of this model"
[[ -z $PUSH || ! $PARSER =~ / ]] ||
    die "$PARSER is a folder of this machine: name a pipeline that others can install, FAIRSEQ_PHRASE_PARSER=spacy:NAME"
slice_text
preprocess "$OUT/data-bin" --trainpref "$TRAIN" --validpref "$DEV" --testpref "$TEST" \
    --constituents from-dependencies --vocab-size 4000 --joined-dictionary

say "Training and translation ($OUT/rows/relation/seed$SEEDS/train.log)"
train_rows "$OUT/data-bin" "$OUT/rows"
[ -z "$DATA_ONLY" ] && [ "$STATUS" = 0 ] || exit "$STATUS"

say "Scores and bundle"
RUN=$OUT/rows/relation/seed$SEEDS
run fairseq-phrase-score "relation=$RUN" --reference "$TEST.en.gz" --out "$OUT/scores.json"
[ -n "$DRY_RUN" ] || rm -rf "$OUT/bundle"
run fairseq-phrase-export "$RUN/average.pt" "$OUT/data-bin" "$OUT/bundle" --datasets multi30k \
    --data-license "research and education, non-commercial (Multi30k's texts and Flickr30k's captions)" \
    --card-scores "$OUT/scores.json" ${LICENSE:+--license "$LICENSE"} ${PUSH:+--push "$PUSH"}
[ -n "$DRY_RUN" ] || cat <<END

Translate with it:
    echo 'Ein Hund läuft durch den Schnee.' | fairseq-phrase-translate $(printf %q "$OUT/bundle") --source-parser $(printf %q "$PARSER")
END
