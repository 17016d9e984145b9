"""Print some lines of a text, compressed or not.

python scripts/slice.py PREFIX LANGUAGE [LINES] [--from N] [--every K]
"""

import argparse
import sys
from itertools import islice

from fairseq_phrase.errors import UserError
from fairseq_phrase.text import find_text, read_lines

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("prefix")
parser.add_argument("language")
parser.add_argument("lines", type=int, nargs="?", help="how many, at most (all)")
parser.add_argument("--from", dest="start", type=int, default=0, help="leave out the first N")
parser.add_argument("--every", type=int, default=1, help="one of K")
args = parser.parse_args()
try:
    lines = islice(read_lines(find_text(args.prefix, args.language)), args.start, None, args.every)
    for line in islice(lines, args.lines):
        print(line)
except UserError as error:
    sys.exit(f"error: {error}")
