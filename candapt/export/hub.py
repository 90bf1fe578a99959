"""A folder to push to the Hugging Face Hub: the exported file, the run's own model, and the card."""

import logging
import shutil
from pathlib import Path

from candapt.errors import UserError
from candapt.export.card import FILE, model_card
from candapt.export.exporting import SUFFIXES, Exported, Format
from candapt.model import CONFIDENCE
from candapt.storage.files import write_atomically
from candapt.storage.folders import OutputFolder, names_in
from candapt.storage.safe_reading import contained

log = logging.getLogger(__name__)

COPIED = ("model.json", "model.safetensors", CONFIDENCE)  # what `candapt.load` reads; a run without the last is older


class HubFolder(OutputFolder):
    """A new folder for the Hub. The run's config.yaml stays out of it: it names places on its maker's machine."""

    @classmethod
    def check_content(cls, path: Path, *, resume: bool) -> None:
        """Raise a `UserError` if the folder holds files."""
        if names_in(path):
            raise UserError(f"{str(path)!r} already holds files: give another --hub-folder; nothing was changed.")

    def model_path(self, format: Format) -> Path:
        """Where the exported file goes."""
        return self.path / f"model{SUFFIXES[format]}"

    def fill(self, run: Path, exported: Exported) -> None:
        """Add what belongs to the exported file."""
        place = self.model_path("onnx" if exported.metadata.opset else "torch")
        if exported.path != place:
            _copy(exported.path, place)
        for name in COPIED:
            if (run / name).exists():
                _copy(contained(run, name), self.path / name)
        with write_atomically(self.path / FILE) as part:
            part.write_text(model_card(run, exported), encoding="utf-8")
        log.info("To publish: hf upload NAMESPACE/NAME %s", self.path)


def _copy(source: Path, target: Path) -> None:
    with write_atomically(target) as part:
        shutil.copyfile(source, part)
