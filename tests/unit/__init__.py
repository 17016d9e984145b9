"""Fast tests: no subprocess, no training, no command of fairseq, no trained parser."""
