# fairseq-phrase from its wheel, for a CPU. scripts/release_check.sh makes the wheel, and runs the RUN lines.
#
#   bash scripts/release_check.sh
#   docker build --tag fairseq-phrase .
#   docker run --rm --volume "$PWD:/work" fairseq-phrase fairseq-phrase-translate bundle test.de --out test.en
FROM python:3.12-slim
# PyPI's torch is a CUDA build of several GB.
RUN pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir 'setuptools>=77' setuptools-scm wheel
RUN READTHEDOCS=1 pip install --no-cache-dir --no-deps --no-build-isolation fairseq-fixed==0.12.3.1
COPY .release/dist/*.whl /wheels/
RUN pip install --no-cache-dir /wheels/*.whl
RUN pip uninstall --yes torchaudio
WORKDIR /work
