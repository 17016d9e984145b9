# Texts and parsers for the scripts of tables. table.sh sources it.

# download URL FILE [SHA256]: see scripts/download.py.
download() { [ -e "$2" ] || run python scripts/download.py "$@"; }

# find_multi30k: set MULTI30K to a folder with the raw Multi30k corpus, downloading it if need be.
find_multi30k() {
    local folder
    for folder in "${FAIRSEQ_PHRASE_DATA:+$FAIRSEQ_PHRASE_DATA/multi30k}" ../shared/data/multi30k data/multi30k; do
        if [ -n "$folder" ] && [ -e "$folder/train.de.gz" ] && [ -e "$folder/test_2016_flickr.en.gz" ]; then
            MULTI30K=$folder
            return 0
        fi
    done
    local base=https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw name sum
    while read -r sum name; do
        download "$base/$name" "data/multi30k/$name" "$sum" || return 1
    done <scripts/multi30k.sha256
    MULTI30K=data/multi30k
}

# find_parser LANGUAGE: set PARSER to a spaCy pipeline for --parser, or to none. It is installed only into
# an environment that the scripts made.
find_parser() {
    local folder package="$1_core_news_sm"
    for folder in "../shared/parsers/$1"_*; do
        if [ -d "$folder" ]; then PARSER="spacy:$folder"; return; fi
    done
    [[ $1 != en && $1 != zh ]] || package=$1_core_web_sm
    PARSER=spacy:$package
    if ! "$PYTHON" -c "import $package" 2>/dev/null &&
        ! { [ -n "$OWN_ENVIRONMENT" ] && run python -m spacy download "$package"; }; then
        echo "# There is no spaCy pipeline for '$1' here. To install one: python -m spacy download $package"
        [ -n "$DRY_RUN" ] || PARSER=none
    fi
}

# choose_parser DATA ROWS: set PARSER, for ROWS. If the data exist already, no parser needs to be installed.
choose_parser() {
    PARSER=${FAIRSEQ_PHRASE_PARSER:-}
    [ -n "$PARSER" ] || [[ -e $1/syntax.$SOURCE.json && -z $WITH_PARSING ]] || find_parser "$SOURCE"
    [ "$PARSER" != none ] || die "$2 need a parser: FAIRSEQ_PHRASE_PARSER=spacy:MODEL"
}

# synthetic_text FOLDER PAIRS TESTS: write the project's own corpus there, PAIRS to train on and TESTS to test
# on. It replaces a table's text if that is not available. Its languages are de and en.
synthetic_text() {
    [ -e "$1/test.en" ] || run fairseq-phrase-synthetic --out "$1" --train "$2" --valid "$3" --test "$3"
}

# slice_text: with --slice, take the first SLICE pairs of the training text TRAIN.
slice_text() {
    local language
    [ -n "$SLICE" ] || return 0
    for language in "$SOURCE" "$TARGET"; do
        make_file "$OUT/raw/train.$language" python scripts/slice.py "$TRAIN" "$language" "$SLICE"
    done
    TRAIN=$OUT/raw/train
}

# pieces N: how many subwords to learn: N, or fewer from a slice.
pieces() {
    local count=$1
    if [ -n "$SLICE" ]; then
        count=$((SLICE / 2 > 500 ? SLICE / 2 : 500))
        count=$((count < $1 ? count : $1))
    fi
    echo "$count"
}

# preprocess DESTDIR ARGUMENTS...: parse, cut and binarize, unless that is done.
preprocess() {
    [ -e "$1/syntax.$SOURCE.json" ] ||
        run fairseq-phrase-preprocess -s "$SOURCE" -t "$TARGET" --destdir "$1" --parser "$PARSER" \
            --on-error flat --workers "$(nproc)" "${@:2}"
}
