"""From a corpus to a data directory.

The files, in the order in which a run (``preprocess``, ``attach``) needs them:

- ``options``, ``texts``: what to do, and the texts, divided into blocks of lines.
- ``input_checks``, ``existing_parses``: what is refused, before anything is parsed.
- ``staging``, ``manifests``: the folder where files wait until all are there; its key.
- ``subword_models``: subword models are found or trained.
- ``first_pass``: lines are parsed and segmented (``segmentation``: each line) by workers (``engines``)
  into ``blocks``, and counted by split (``splits``).
- ``dictionaries``: numbers of subwords and labels, which are then final.
- ``second_pass``: blocks become the files of each split. Manifests are last.
"""
