"""One training loop, the eDP-SGD step, and the run record. Torch is imported with the first name that needs it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edp_lab.training.config import TrainConfig
    from edp_lab.training.dp_step import PrivateStep
    from edp_lab.training.gradients import trainable
    from edp_lab.training.inference import evaluate_run, predict_texts
    from edp_lab.training.run_folder import read_record, run_ledger, versions
    from edp_lab.training.run_session import resume, train
    from edp_lab.training.trainer import EpochDone, StepDone

_WHERE = {
    "config": ("TrainConfig",),
    "dp_step": ("PrivateStep",),
    "gradients": ("trainable",),
    "inference": ("evaluate_run", "predict_texts"),
    "run_folder": ("read_record", "run_ledger", "versions"),
    "run_session": ("resume", "train"),
    "trainer": ("EpochDone", "StepDone"),
}
__all__ = [
    "EpochDone", "PrivateStep", "StepDone", "TrainConfig", "evaluate_run", "predict_texts", "read_record", "resume",
    "run_ledger", "train", "trainable", "versions",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _WHERE.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
