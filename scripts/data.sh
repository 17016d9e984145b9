# Texts and parsers for the scripts of tables. table.sh sources it.

# download URL FILE [SHA256]: see scripts/download.py.
download() { [ -e "$2" ] || run python scripts/download.py "$@"; }

# find_corpus NAME: set FOUND to a folder with this corpus: the texts that --data-only kept,
# FAIRSEQ_PHRASE_DATA/NAME, ../shared/data/NAME, or data/NAME, into which the files of scripts/corpora.txt
# are downloaded.
find_corpus() {
    local sum file url further
    if find_kept "$1"; then return 0; fi
    for FOUND in "${FAIRSEQ_PHRASE_DATA:+$FAIRSEQ_PHRASE_DATA/$1}" "../shared/data/$1" "data/$1"; do
        if has_corpus "$1" "$FOUND"; then CORPORA+=("$1=$FOUND"); return 0; fi
    done
    CORPORA+=("$1=$FOUND")
    grep -q " $1/" scripts/corpora.txt || return 1
    while read -r sum file url further; do
        [[ $file != "$1"/* ]] || download "$url" "data/$file" "$sum" || return 1
    done <scripts/corpora.txt
}

# The texts that --data-only keeps, because another machine may lack the corpora: validation and test
# sets, and minimal pairs, as NAME=FOLDER of each corpus. The training text is in the data.
CORPORA=()

# find_kept NAME: whether --data-only kept a corpus; then FOUND is the folder. More data need the corpus itself.
find_kept() {
    [[ -z ${DATA_ONLY:-} && -d ${OUT:-}/corpora/$1 ]] && FOUND=$OUT/corpora/$1
}

# find_text NAME FOLDER: set FOUND to a folder that the user names, or to the texts that --data-only kept
# of it.
find_text() {
    if find_kept "$1"; then return 0; fi
    [ -d "$2" ] || lack "$2: there is no such folder"
    FOUND=$2
    CORPORA+=("$1=$2")
}

# keep_texts: copy the texts of CORPORA that steps after the data need to OUT/corpora, also the SETS and DEV of a table.
keep_texts() {
    local corpus folder file kept files name
    for corpus in "${CORPORA[@]}"; do
        folder=${corpus#*=}
        run mkdir -p "$OUT/corpora/${corpus%%=*}"
        files=("$folder"/{test,val,dev,newstest}* "$folder"/*/{src,tgt}.*)
        for name in "${SETS[@]}" ${DEV:+"${DEV##*/}"}; do files+=("$folder/$name".*); done
        for file in "${files[@]}"; do
            kept=$OUT/corpora/${corpus%%=*}${file#"$folder"}
            if [[ -f $file && ! -e $kept ]]; then
                run mkdir -p "$(dirname "$kept")"
                run cp -L "$file" "$kept"
            fi
        done
    done
    CORPORA=()
}

# has_corpus NAME FOLDER: whether the folder has all files of a corpus in scripts/corpora.txt, with or without .gz.
# The user's folder may lack files that are marked "further".
has_corpus() {
    local sum file url further name
    [ -d "$2" ] || return 1
    while read -r sum file url further; do
        name=$2/${file#"$1"/}
        [[ $further || $file != "$1"/* || -e $name || -e $name.gz || -e ${name%.gz} ]] || return 1
    done <scripts/corpora.txt
}

# packed FILE: print FILE, or FILE.gz if that is there.
packed() { if [ -e "$1.gz" ]; then echo "$1.gz"; else echo "$1"; fi; }

# lack MESSAGE: stop, because a text is missing. A dry run prints the message and continues.
lack() {
    [ -n "$DRY_RUN" ] || die "$1"
    echo "# missing: $1"
}

# need_corpus NAME: find_corpus, or stop. A dry run continues.
need_corpus() {
    find_corpus "$1" ||
        lack "the corpus $1 is not here and cannot be downloaded: docs/tables.md says where it comes from; put it into ${FAIRSEQ_PHRASE_DATA:-data}/$1"
}

# find_tests DATA FOLDER NAMES...: set SETS to the first of NAMES, and to the other NAMES that FOLDER has
# in both languages, .gz too, or would have after the downloads of a dry run. Existing data and restored runs get
# no other sets.
find_tests() {
    local manifest name source target
    manifest=$(compgen -G "$1/*syntax.*.json" | head -n 1) || manifest=
    SETS=("$3")
    for name in "${@:4}"; do
        [ -z "$manifest" ] || grep -q "\"test${#SETS[@]}\"" "$manifest" || break
        source=$2/$name.$SOURCE target=$2/$name.$TARGET
        if [[ (-e $source || -e $source.gz) && (-e $target || -e $target.gz) || $DRY_RUN && ! -e $2 ]]; then
            SETS+=("$name")
        else
            echo "# missing: the test set $name is not in $2, and is left out"
        fi
    done
}

# find_data NAME: set DATA to this corpus, unless the user names another.
find_data() {
    [ -n "$DATA" ] || { need_corpus "$1" && DATA=$FOUND; }
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
        ! { [ -n "$OWN_ENVIRONMENT" ] && run install_pipeline "$package"; }; then
        echo "# There is no spaCy pipeline for '$1' here. To install one: python -m spacy download $package"
        echo "# To use another: FAIRSEQ_PHRASE_PARSER=spacy:MODEL"
        [ -n "$DRY_RUN" ] || PARSER=none
    fi
}

# install_pipeline PACKAGE: let spaCy download it. Without a network spaCy prints a traceback of 90 lines, and the last
# one is the reason.
install_pipeline() {
    local output
    echo "- spaCy's pipeline $1"
    output=$(python -m spacy download "$1" 2>&1) || { tail -n 1 <<<"$output" >&2; return 1; }
}

# choose_parser DATA ROWS: set PARSER, for ROWS. If the data exist already, no parser needs to be installed.
choose_parser() {
    PARSER=${FAIRSEQ_PHRASE_PARSER:-}
    [ -z "${REPORT_ONLY:-}" ] || return 0
    [ -n "$PARSER" ] || [[ -e $1/syntax.$SOURCE.json && -z ${WITH_PARSING:-} ]] || find_parser "$SOURCE"
    [ "$PARSER" != none ] || die "$2 need a parser: FAIRSEQ_PHRASE_PARSER=spacy:MODEL"
}

# adapt_parser TREES OPTIONS...: continue the training of the spaCy pipeline PARSER on trees, and set PARSER to the new
# one, OUT/parser. OUT/parser.txt has its scores before and after.
adapt_parser() {
    if [ ! -e "$OUT/parser" ]; then
        run rm -f "$OUT/parser.txt" # kept results have that file without the parser
        make_file "$OUT/parser.txt" python scripts/adapt_parser.py "${PARSER#spacy:}" "$1" "$OUT/parser" "${@:2}" \
            ${SLICE:+--held-out 20}
    fi
    PARSER=spacy:$OUT/parser
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

# num_subwords N: the number of subwords to learn: N, or fewer from a slice.
num_subwords() {
    local count=$1
    if [ -n "$SLICE" ]; then
        count=$((SLICE / 2 > 500 ? SLICE / 2 : 500))
        count=$((count < $1 ? count : $1))
    fi
    echo "$count"
}

# made_once FILE FOLDER WORDS...: whether FILE is there already, which is in FOLDER. Then the folder must have
# been made with these WORDS and with the texts that they name.
made_once() {
    [ -e "$1" ] || return 1
    [ -n "$DRY_RUN" ] || python scripts/made_with.py check "${@:2}" || exit
}

# record FOLDER WORDS...: note what made_once compares.
record() { [ -n "$DRY_RUN" ] || python scripts/made_with.py record "$@"; }

# preprocess DESTDIR ARGUMENTS...: parse by PARSER or --parser, segment and binarize, unless that is done. A slice has a
# smaller --vocab-size. With restored runs, the data must equal the runs' data.
preprocess() {
    local options=("${@:2}") index named=() flat=() PARSER=$PARSER
    [ -z "$REPORT_ONLY" ] || return 0
    for index in "${!options[@]}"; do
        if [ "${options[index]:-}" = --vocab-size ]; then
            options[index + 1]=$(num_subwords "${options[index + 1]}")
            options+=(--normal-form nmt_nfkc) # of the kept results' subwords
        elif [ "${options[index]:-}" = --parser ]; then
            PARSER=${options[index + 1]}
            unset "options[index]" "options[index + 1]"
        fi
    done
    options=(-s "$SOURCE" -t "$TARGET" "${options[@]}")
    # A parser that was found for raw text may be in another place than the data's.
    if [[ $PARSER && ( -z ${WITH_PARSING:-} || ${FAIRSEQ_PHRASE_PARSER:-} ) ]]; then named=(--parser "$PARSER"); fi
    if ! made_once "$1/syntax.$SOURCE.json" "$1" "${options[@]}" "${named[@]}"; then
        [[ " ${options[*]}" == *\ --on-error\ * ]] || flat=(--on-error flat)
        run fairseq-phrase-preprocess "${options[@]}" --destdir "$1" --parser "$PARSER" "${flat[@]}" --workers "$(cores)"
        record "$1" "${options[@]}" --parser "$PARSER"
    fi
    check_kept "$1"
}

# check_kept DESTDIR: stop if the data differ from the data of restored runs.
check_kept() {
    ! compgen -G "$1/kept.syntax.*.json" >/dev/null || run python scripts/same_data.py "$1"
}
