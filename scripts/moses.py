"""Print a text in lower case and in Moses' tokens, as in many papers on Multi30k.

python scripts/moses.py PREFIX LANGUAGE [LINES]

Punctuation is normalized first. Characters with a meaning in Moses' other tools are escaped (&apos;).
"""

import argparse
import sys
from itertools import islice

from tqdm import tqdm

from fairseq_phrase.errors import UserError
from fairseq_phrase.text import find_text, read_lines

try:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer
except ModuleNotFoundError:
    sys.exit("Moses' tokens need sacremoses: pip install sacremoses")

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("prefix")
parser.add_argument("language")
parser.add_argument("lines", type=int, nargs="?", help="how many, at most (all)")
args = parser.parse_args()
normalizer, tokenizer = MosesPunctNormalizer(args.language), MosesTokenizer(args.language)
try:
    lines = islice(read_lines(find_text(args.prefix, args.language)), args.lines)
    for line in tqdm(lines, f"tokens of {args.prefix}.{args.language}", unit="line"):
        print(tokenizer.tokenize(normalizer.normalize(line.lower()), return_str=True))
except UserError as error:
    sys.exit(f"error: {error}")
