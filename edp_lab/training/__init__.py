"""One training loop, the eDP-SGD step, and the run record."""

from edp_lab.training.config import TrainConfig
from edp_lab.training.dp_step import PrivateStep
from edp_lab.training.gradients import trainable
from edp_lab.training.inference import evaluate_run, predict_texts, run_ledger
from edp_lab.training.run_folder import read_record
from edp_lab.training.run_session import resume, train
from edp_lab.training.trainer import EpochDone, StepDone

__all__ = [
    "EpochDone",
    "PrivateStep",
    "StepDone",
    "TrainConfig",
    "evaluate_run",
    "predict_texts",
    "read_record",
    "resume",
    "run_ledger",
    "train",
    "trainable",
]
