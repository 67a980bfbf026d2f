"""FedKT as a task, its public student, and who does without; teachers, votes and noise are the product's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import count
from math import inf

import numpy as np

from coordinator.consensus.party_noise import release_of
from experiments.data import Dataset, Deal, Sizes, deal, pooled
from experiments.federation import Course, Hospital, hold, task
from experiments.papers.cotraining import alone, consensus_of, names, own_seed, score
from experiments.papers.experiment import Line, Timed, by_seed
from silo_agent.models.afresh import fitted
from silo_agent.models.catalogue import LearnerSpec, build
from silo_agent.models.protocol import AnyLearner, Labelled
from silo_agent.privacy.settings import PrivacySettings, TeacherVotesSettings
from silo_agent.trainer.settings import TrainingSettings
from wire.ballot import ABSTAIN
from wire.methods import FedktLevel
from wire.privacy.accounting import epsilon

BETA = 0.5
DELTA = 1e-5
