"""Print the first lines of a text, compressed or not.

python scripts/slice.py PREFIX LANGUAGE LINES
"""

import sys
from itertools import islice

from fairseq_phrase.text import find_text, read_lines

prefix, language, count = sys.argv[1:]
for line in islice(read_lines(find_text(prefix, language)), int(count)):
    print(line)
