"""A user-defined source of phrases: the words that share a head are a phrase."""

import torch

from fairseq_phrase.methods.phrases.phrase_sources import phrase_source


@phrase_source("siblings", fields=["words", "heads"])
def siblings(tokens, parse, options):
    words, heads = parse["words"], parse["heads"]
    # The head of each token's word, -1 at tokens outside words. Shape: (batch, tokens)
    head_of_token = heads.gather(1, words.clamp(min=0)).masked_fill(words < 0, -1)
    # One phrase for each word that may be a head. Shape: (batch, words, tokens)
    head = torch.arange(heads.size(1), device=heads.device)[:, None]
    members = head_of_token[:, None] == head
    return members & (members.sum(2, keepdim=True) > 1)
