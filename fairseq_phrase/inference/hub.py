"""Uploading of exported folders to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairseq_phrase.errors import UserError
from fairseq_phrase.optional_packages import optional_packages


def load_hub() -> Any:
    """Import the hub's client.

    Raises:
        UserError: it is not installed.
    """
    with optional_packages("--push needs huggingface_hub", "huggingface_hub"):
        import huggingface_hub
    return huggingface_hub


def push(folder: Path, repository: str) -> str:
    """Upload a folder to a repository, which is made if it does not exist; return its address.

    Args:
        repository: ``USER/NAME``.

    Raises:
        UserError: the client is not installed, or the upload failed.
    """
    api = load_hub().HfApi()
    try:
        address = api.create_repo(repository, exist_ok=True)
        api.upload_folder(repo_id=address.repo_id, folder_path=folder)
    except Exception as error:  # its own errors and its HTTP library's
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{folder} is complete, but --push {repository} failed: {reason}. Upload it later by "
            f"hf upload {repository} {folder}"
        ) from error
    return str(address)
